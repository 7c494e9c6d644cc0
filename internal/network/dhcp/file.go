package dhcp

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// LeaseFile returns the path of an interface's lease file, in its node's live folder.
func LeaseFile(run, ifname string) string { return filepath.Join(run, "lease."+ifname) }

// ReadLease reads a lease file. It returns the zero Lease, which has ended, if there is no readable file.
func ReadLease(file string) Lease {
	var l Lease
	text, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(text, &l) != nil {
		return Lease{}
	}
	return l
}
