"""One file per subcommand; each exports `command`. They parse arguments, call one room and print."""
