// Command berth-guest is process 1 of a machine's initial RAM disk: it makes the guest's root, and runs commands for the host. It
// runs in guests only.
package main

import (
	"os"

	"berth/internal/runner/machine/guest"
	"berth/internal/storage/copier"
)

func main() {
	if len(os.Args) == 5 && os.Args[1] == guest.CopierWord && os.Getpid() != 1 { // package guest starts it
		os.Exit(copier.Serve(os.Args[2:]))
	}
	os.Exit(guest.Main())
}
