// Command berth-pull fetches an image from a registry for berth image pull, which starts it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"berth/internal/image/registry"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Fprintln(os.Stderr, "berth-pull: it takes no arguments; berth image pull REF starts it")
		os.Exit(2)
	}
	syscall.Umask(0o077)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := registry.This().Serve(ctx, os.Stdin, os.Stdout); err != nil {
		os.Exit(1)
	}
}
