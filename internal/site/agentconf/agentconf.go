// Package agentconf reads the agent's file /etc/berth/berthd.yaml, as strictly as a spec, and fills in what it leaves out.
package agentconf

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"berth/internal/site/iosync/want"
	"berth/internal/spec"
	"berth/internal/spec/vnode"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Port is the port on which agents answer each other and people.
const Port = 7611

// StorePort and PeerPort are the ports of an embedded store: for the agents of other hosts, and for other members.
const (
	StorePort = 7612
	PeerPort  = 7613
)

// Config is the agent's file. The zero value is a host that is alone and keeps the store of its site itself.
type Config struct {
	Host    string       `json:"host,omitempty" doc:"this host's name in the site; if absent: its host name"`
	Address string       `json:"address,omitempty" doc:"where other hosts and people reach this agent, as ADDRESS:PORT; if absent: the host's name and the port of listen"`
	Site    string       `json:"site,omitempty" doc:"name of the site that the store belongs to; if absent: site"`
	Listen  []string     `json:"listen,omitempty" doc:"where the agent answers over TLS, as ADDRESS:PORT; if absent: port 7611 of all addresses, once the host has a certificate"`
	Local   bool         `json:"local,omitempty" doc:"true: the agent answers on its unix socket alone, never over the network"`
	Socket  string       `json:"socket,omitempty" doc:"unix socket of the agent; if absent: /run/berth/berthd.sock"`
	Group   string       `json:"group,omitempty" doc:"group whose members may use the unix socket: they are root on this host; if absent: berth, if there is such a group"`
	Certs   string       `json:"certs,omitempty" doc:"folder of this host's certificate; if absent: /etc/berth/certs"`
	Store   Store        `json:"store,omitzero" doc:"where what the site's hosts know of each other is kept"`
	Rack    string       `json:"rack,omitempty" doc:"where the host stands; told to the site"`
	Slots   int          `json:"slots,omitempty" range:"1..100000" doc:"how many nodes this host takes; if absent: no bound of its own"`
	Labels  vnode.Labels `json:"labels,omitempty" doc:"what else the site is told of this host"`

	Filesystems []want.Filesystem `json:"filesystems,omitempty" doc:"shared file systems that this host serves: what nodes of the site may do there is limited here (VNode Sync)"`

	Metrics string `json:"metrics,omitempty" doc:"ADDRESS:PORT of plain HTTP for Prometheus, on the loopback or a private network; if absent: none"`
}

// Store says which store the site has: one that this agent runs, or one that is there.
type Store struct {
	Embedded  *Embedded `json:"embedded,omitempty" doc:"this agent keeps the store itself, as its only member: one host of a site does"`
	Endpoints []string  `json:"endpoints,omitempty" doc:"an etcd that is there, or the host that keeps an embedded store: https://ADDRESS:PORT"`
	CA        string    `json:"ca,omitempty" doc:"authority of the endpoints' certificates; if absent: the site's"`
	Cert      string    `json:"cert,omitempty" doc:"certificate shown to the endpoints; if absent: the host's"`
	Key       string    `json:"key,omitempty" doc:"its key"`
	User      string    `json:"user,omitempty" doc:"user of the store, where it asks for one"`
	Password  string    `json:"password_file,omitempty" doc:"file with the user's password, which only root may read"`
}

// Embedded is a store that the agent runs.
type Embedded struct {
	Dir    string `json:"dir,omitempty" doc:"its folder; if absent: /var/lib/berth/store"`
	Listen string `json:"listen,omitempty" doc:"ADDRESS:PORT for the agents of other hosts, by TLS; if absent: none, the site is this host"`
}

// Path returns the agent's file of a layout.
func Path(l layout.Layout) string { return filepath.Join(folder(l), "berthd.yaml") }

// folder is where an admin's files are.
func folder(l layout.Layout) string { return filepath.Dir(l.UsersList()) }

// Read reads the file, and fills in defaults. No file is an empty file.
func Read(l layout.Layout, path string) (*Config, error) {
	data, err := os.ReadFile(path)
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && path == Path(l)) {
		return nil, refuse.Cannotf("write it, or name another by --config", "read the agent's file: %w", err)
	}
	c, err := Parse(path, data)
	if err != nil {
		return nil, err
	}
	return c, c.complete(l)
}

// Parse reads the text of the file. Its error is a refusal of kind Invalid, one line a mistake with its place.
func Parse(path string, data []byte) (*Config, error) {
	c := &Config{}
	if err := spec.ParseOne(path, data, "the agent's file", c, check); err != nil {
		return nil, &refuse.Error{Kind: refuse.Invalid, What: err.Error(), Err: err}
	}
	return c, nil
}

// Schema returns the JSON Schema of the file.
func Schema() ([]byte, error) { return spec.SchemaOf[Config]("The file of Berth's agent, berthd.yaml") }

// complete fills in the defaults.
func (c *Config) complete(l layout.Layout) error {
	if c.Host == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read the host's name: %w", err)
		}
		if !isName(name) {
			return refuse.Invalidf("this host is called %q, which is no name of a host in a site: write host: NAME into %s", name, Path(l))
		}
		c.Host = name
	}
	if len(c.Listen) == 0 && !c.Local {
		c.Listen = []string{net.JoinHostPort("", strconv.Itoa(Port))}
	}
	if c.Address == "" {
		c.Address = net.JoinHostPort(c.Host, strconv.Itoa(Port))
		if len(c.Listen) > 0 {
			address, port, _ := net.SplitHostPort(c.Listen[0])
			if ip := net.ParseIP(address); address == "" || ip != nil && ip.IsUnspecified() {
				address = c.Host
			}
			c.Address = net.JoinHostPort(address, port)
		}
	}
	c.Site = cmp.Or(c.Site, "site")
	c.Socket = cmp.Or(c.Socket, l.AgentSocket())
	c.Group = cmp.Or(c.Group, "berth")
	c.Certs = cmp.Or(c.Certs, filepath.Join(folder(l), "certs"))
	if len(c.Store.Endpoints) > 0 {
		return nil
	}
	if c.Store.Embedded == nil {
		c.Store.Embedded = &Embedded{}
	}
	c.Store.Embedded.Dir = cmp.Or(c.Store.Embedded.Dir, filepath.Join(l.Lib, "store"))
	return nil
}

// Signer returns the folder of the site's authority, on the one host that has it.
func Signer(l layout.Layout) string { return filepath.Join(folder(l), "ca") }
