// Command berth-site is what berth starts for other hosts and their agents: it speaks HTTPS, and makes certificates.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"berth/internal/sitecli"
)

func main() {
	syscall.Umask(0o022)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := sitecli.Main(ctx, os.Args[1:], sitecli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
