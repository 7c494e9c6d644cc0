// Command berth-sync is what berth starts to look into the kernel of a file server: it loads programs of BPF.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"berth/internal/site/synccli"
)

func main() {
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := synccli.Main(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
