# The program knows its own options.
towline completions fish | source
