// Command berth-site is what berth starts for other hosts and their agents: it speaks HTTPS, and makes certificates.
package main

import (
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"berth/internal/site/sitecli"
)

func main() {
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := sitecli.Main(ctx, arguments(), sitecli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}

// arguments are those of the command line. Slurm starts the programs in its settings without arguments. They are links to this program,
// whose name is the command. As slurm-resume, it is berth slurm resume.
func arguments() []string {
	if act, ok := strings.CutPrefix(filepath.Base(os.Args[0]), "slurm-"); ok {
		return append([]string{"slurm", act}, os.Args[1:]...)
	}
	return os.Args[1:]
}
