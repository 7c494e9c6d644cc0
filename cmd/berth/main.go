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

// mostHeap is the heap from which garbage is collected as often as needed: what an image's archive makes of it must not take the host's memory.
// What archives make a command keep has limits of its own, far below.
const mostHeap = 512 << 20

func main() {
	// Override the caller's umask: others must not write to sockets and files, and a node's root must traverse its live folders.
	syscall.Umask(0o022)
	// A command is short: most end before there is so much garbage that collecting it pays. The keeper takes this back.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(mostHeap)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := cli.Main(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr})
	stop()
	os.Exit(code)
}
