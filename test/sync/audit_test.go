package sync

import (
	"fmt"
	"testing"

	"berth/internal/site/iosync/place"
	"berth/internal/site/iosync/probe"
)

// audit begins to count the I/O of the disk as berth sync audit does. The function that it returns says what was found so far.
func (s *site) audit(filesystem string) func() probe.Result {
	s.t.Helper()
	var major, minor uint32
	if _, err := fmt.Sscanf(s.number(), "%d:%d", &major, &minor); err != nil {
		s.t.Fatal(err)
	}
	f := &probe.Folder{Dir: place.Dir(s.layout, filesystem)}
	if err := f.Look(); err != nil {
		s.t.Fatal(err)
	}
	p, err := probe.Open(major, minor)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			s.t.Error(err)
		}
	})
	return func() probe.Result {
		s.t.Helper()
		counts, err := p.Read()
		if err == nil {
			err = f.Look()
		}
		if err != nil {
			s.t.Fatal(err)
		}
		return f.Result(counts, p.Ways())
	}
}

// clean says what is wrong with an audit in which nothing may have leaked. It returns how many bytes a node read in its group.
func clean(t *testing.T, r probe.Result, node string) (read int64) {
	t.Helper()
	for _, n := range r.Nodes {
		if n.Name == node {
			read = n.Read.Own
		}
	}
	t.Logf("audit: %s read %d bytes in its group; %d leaked, %d polluted, %d unknown", node, read, r.Leaked, r.Polluted, r.Unknown.Bytes())
	if r.Leaked != 0 || r.Polluted != 0 || r.Lost != 0 {
		t.Errorf("the audit found %+v", r)
	}
	return read
}
