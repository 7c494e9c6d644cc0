package agentconf

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// TestMistakes: each mistake is said with its place.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"hots: a":                       `f:1:1: hots: unknown key; did you mean host?`,
		"host: Node One":                `f:1:7: host: "Node One" is no name: lower-case letters, digits, - and dots, as in DNS`,
		"host: a\nlisten: [7611]":       `f:2:10: listen[0]: "7611" is not ADDRESS:PORT; an IPv6 address stands in brackets`,
		"listen: [\":70000\"]":          `f:1:10: listen[0]: "70000" is no port: from 1 to 65535; 0 is any that is free`,
		"local: true\nlisten: [\":1\"]": `f:2:9: listen: with local: true the agent listens nowhere: leave one of them out`,
		"address: \":7611\"":            `f:1:10: address: ":7611" names no host: other hosts reach this agent there`,
		"socket: run/berthd.sock":       `f:1:9: socket: "run/berthd.sock" is no path from the root of the file system`,
		"slots: 0":                      `f:1:8: slots: 0 is not allowed: for no limit leave the key out`,
		"slots: many":                   `f:1:8: slots: "many" is not allowed: a whole number`,
		"host: a\n---\nhost: b":         `f:3:1: a second document: the agent's file is one`,
		"host: a\nhost: b":              `f:2:1: host: the key is already at line 1`,
		"store: {endpoints: [\"https://10.0.0.1:2379\"], embedded: {dir: /x}}": `f:1:57: store.embedded: with endpoints the store is elsewhere: leave one of them out`,
		"store:\n  endpoints:\n    - http://10.0.0.1:2379\n":                   `f:3:7: store.endpoints[0]: "http://10.0.0.1:2379" is not encrypted: http is for an address of the loopback, as 127.0.0.1`,
		"store: {endpoints: [\"10.0.0.1:2379\"]}":                              `f:1:21: store.endpoints[0]: "10.0.0.1:2379" is no endpoint: https://ADDRESS:PORT`,
		"store: {endpoints: [\"https://h:2379\"], cert: /c}":                   `f:1:46: store.cert: cert and key belong together`,
		"store: {endpoints: [\"https://h:2379\"], user: a}":                    `f:1:46: store.user: user and password_file belong together`,
		"store: {embedded: {listen: nowhere}}":                                 `f:1:28: store.embedded.listen: "nowhere" is not ADDRESS:PORT; an IPv6 address stands in brackets`,
		"store: yes":                                                           `f:1:8: store: a single value where keys and values are expected: embedded, endpoints, ca, cert, key, user, password_file`,
	} {
		_, err := Parse("f", []byte(text))
		if err == nil || err.Error() != want || refuse.KindOf(err) != refuse.Invalid {
			t.Errorf("%q:\n got %v\nwant %s", text, err, want)
		}
	}
}

// TestDefaults: an empty file, and none, are a host that keeps the store of its site itself.
func TestDefaults(t *testing.T) {
	dir := t.TempDir()
	l := layout.New(dir)
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "# nothing\n", "host: " + strings.ToLower(own)} {
		file := Path(l)
		if text == "" {
			file = filepath.Join(dir, "berthd.yaml")
		} else if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Read(l, file)
		if err != nil {
			t.Fatal(err)
		}
		if c.Host != own || c.Address != own+":7611" || c.Listen[0] != ":7611" || c.Site != "site" || c.Group != "berth" ||
			c.Socket != dir+"/run/berthd.sock" || c.Certs != dir+"/certs" || c.Store.Embedded.Dir != dir+"/lib/store" || c.Metrics != "" {
			t.Errorf("%q: %+v", text, c)
		}
	}
	if _, err := Read(l, dir+"/other.yaml"); refuse.KindOf(err) != refuse.Cannot {
		t.Errorf("a file that was named and is not there: %v", err)
	}
}

// TestGiven: what the file says is kept.
func TestGiven(t *testing.T) {
	l := layout.New(t.TempDir())
	file := filepath.Join(t.TempDir(), "f.yaml")
	text := "host: b\nsite: lab\nlisten: [\"192.0.2.2:7000\"]\nstore:\n  endpoints: [\"https://a:7612\"]\nrack: r1\nslots: 40\nlabels: {disk: nvme}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Read(l, file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Address != "192.0.2.2:7000" || c.Store.Embedded != nil || c.Slots != 40 || c.Labels["disk"] != "nvme" || c.Rack != "r1" || c.Site != "lab" {
		t.Errorf("%+v", c)
	}
}

// TestSchema: the schema has the keys.
func TestSchema(t *testing.T) {
	text, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Properties map[string]any }
	if err := json.Unmarshal(text, &s); err != nil || s.Properties["store"] == nil || s.Properties["slots"] == nil {
		t.Errorf("%v: %s", err, text)
	}
}
