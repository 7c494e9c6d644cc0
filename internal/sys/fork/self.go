package fork

// program is the file of the program berth. A process is one program, so this is one state per process.
var program = "/proc/self/exe"

// Berth returns the program that is berth's command line: this one, unless ActFor named another.
func Berth() string { return program }

// ActFor says that this program acts for the program berth, whose file is path. The keeper and all other children that are
// berth's own then run that file. It is called before anything else.
func ActFor(path string) { program = path }
