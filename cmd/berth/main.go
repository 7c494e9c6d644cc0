// Command berth runs virtual nodes: compute beside a storage service, each node with its own identity and limits.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"berth/internal/cli"
)

func main() {
	// Override the caller's umask: others must not write to sockets and files, and a node's root must traverse its live folders.
	syscall.Umask(0o022)
	// A command is short: most end before there is so much garbage that collecting it pays. The keeper takes this back.
	debug.SetGCPercent(400)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
