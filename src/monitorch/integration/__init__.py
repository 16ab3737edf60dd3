"""Programs that monitorch works with: one module each, which needs the package of that program."""
