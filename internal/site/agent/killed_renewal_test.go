package agent

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"berth/internal/site/agentconf"
	"berth/internal/site/certs"
)

// TestKilledRenewal: an agent that was killed while it exchanged its certificate reaches the site's store all the same.
func TestKilledRenewal(t *testing.T) {
	s, err := certs.Init(filepath.Join(t.TempDir(), "ca"))
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.IssueHost(t.Context(), "node1", nil)
	if err != nil {
		t.Fatal(err)
	}
	next, err := s.Reissue(t.Context(), "node1")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := certs.Install(dir, old); err != nil {
		t.Fatal(err)
	}
	key, cert := next.Files[2], next.Files[3]
	for _, f := range []certs.File{{Name: key.Name, Data: slices.Concat(old.Files[2].Data, key.Data)}, cert} {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := &agentconf.Config{Certs: dir}
	config, err := storeTLS(c)
	if err != nil {
		t.Fatal(err)
	}
	if own, err := config.GetClientCertificate(nil); err != nil || !own.Leaf.Equal(next.Cert) {
		t.Errorf("it shows another certificate: %v", err)
	}
	c.Store.Endpoints = []string{"https://127.0.0.1:1"}
	state, err := openState(t.Context(), c, nil)
	if err != nil {
		t.Fatal(err)
	}
	state.close()
	if got, err := os.ReadFile(filepath.Join(dir, key.Name)); err != nil || string(got) != string(key.Data) {
		t.Errorf("the agent begins with more keys than its certificate's: %v", err)
	}
}
