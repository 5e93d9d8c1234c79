# The program knows its own options.
source <(towline completions bash)
