// Command berth-guest is process 1 of a machine's initial RAM disk: it makes the guest's root, and runs commands for the host. It
// runs in guests only.
package main

import (
	"os"

	"berth/internal/runner/machine/guest"
)

func main() { os.Exit(guest.Main()) }
