package sync

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestUnserved: what nobody holds is said: on the server of a file system that it cannot serve, and on the host of a node whose file
// system no host serves. Where a host serves it, the node's host names it.
func TestUnserved(t *testing.T) {
	mostlyWaits(t)
	s := newSite(t, "198.51.123")
	s.configure(fmt.Sprintf("filesystems: [{name: shared, path: %s, server: other, interface: none-such}]\n", s.served))
	s.start()
	s.node("n", 2, "io: [{name: s, filesystem: shared, read: {rate: 10MB/s}}, {name: typo, filesystem: shraed, read: {rate: 10MB/s}}]\n")
	const says = "nothing new is set here until this is mended: "
	s.eventually("it is said that the file system is not served", 5*time.Second, func() bool {
		h, ok := s.held("")
		return ok && h.Filesystem == "shared" && strings.HasPrefix(h.Failed, says) && strings.Contains(h.Failed, "none-such")
	})
	if out := s.berth("sync", "ls"); !strings.Contains(out, "shared: not enforced: "+says) && !strings.Contains(strings.Join(strings.Fields(out), " "), "not enforced: "+says) {
		t.Errorf("berth sync ls says:\n%s", out)
	}
	words := strings.Join(strings.Fields(s.berth("show", "n")), " ")
	for _, part := range []string{"DOES NOT HOLD: no host of the site serves file system shraed", "held by the file servers of shared (a by way network)"} {
		if !strings.Contains(words, part) {
			t.Errorf("berth show does not say %q:\n%s", part, words)
		}
	}
	said := strings.Join(strings.Fields(s.berth("set", "n", "io.typo.read.rate=20MB/s", "io.s.read.rate=20MB/s")), " ")
	for _, part := range []string{"no host of the site serves file system shraed", "held by the file servers of shared"} {
		if !strings.Contains(said, part) {
			t.Errorf("berth set does not say %q:\n%s", part, said)
		}
	}
	s.berth("set", "n", "io.s.read.rate=10MB/s")
	s.end(s.agent, syscall.SIGTERM)
	s.configure(strings.Replace(shared, "%s", s.served, 1))
	s.start()
	s.eventually("it is served", 5*time.Second, func() bool {
		_, unserved := s.held("")
		return !unserved && s.limit("n") == asked
	})
	if out := s.berth("sync", "ls"); !strings.Contains(out, time.Now().Format("2006-01-02")) {
		t.Errorf("berth sync ls does not say since when:\n%s", out)
	}
}
