// Package membership claims for nodes what is unique in a site: names, MACs and addresses. It asks the host's agent over a unix
// socket; a host that belongs to no site claims nothing.
package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
)

// Member says which site a host belongs to. The agent writes it when the host joins.
type Member struct {
	Site string `json:"site"`
	Host string `json:"host"`
}

// Read returns the host's membership of a site; nil if it belongs to none.
func Read(l layout.Layout) (*Member, error) {
	var m Member
	err := jsonfile.File{Path: l.Site(), Is: "the site of this host", Remedy: "start berthd, which writes it anew", Kind: refuse.Failed}.Read(&m)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the site of this host: %w", err)
	}
	return &m, nil
}

// Join notes that a host belongs to a site: from now on its nodes claim through the agent.
func Join(l layout.Layout, m Member) error {
	text, err := json.Marshal(m)
	if err == nil {
		err = file.Write(l.Site(), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("note the site of this host: %w", err)
	}
	return nil
}

// Leave notes that a host belongs to no site.
func Leave(l layout.Layout) error {
	if err := file.Remove(l.Site()); err != nil {
		return fmt.Errorf("note that this host is alone: %w", err)
	}
	return nil
}

// Kind says what a thing is. It is part of the thing's key in the cluster state.
type Kind string

// The kinds.
const (
	Name    Kind = "name"
	MAC     Kind = "mac"
	Address Kind = "address"
)

// Thing is something that only one node of a site may have. Value is written as the kernel writes it.
type Thing struct {
	Kind  Kind   `json:"kind"`
	Value string `json:"value"`
}

func (t Thing) String() string {
	if t.Kind == MAC {
		return "MAC " + t.Value
	}
	return string(t.Kind) + " " + t.Value
}

// Holder is the node that has a thing: the value of its key in the cluster state.
type Holder struct {
	Host  string    `json:"host"`
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
}

// Request is the line by which a command asks the agent; Answer is the line that comes back.
type Request struct {
	Do     string  `json:"do"` // claim | release | follow | servers
	Node   string  `json:"node"`
	Things []Thing `json:"things"`

	Filesystems []string `json:"filesystems,omitempty"` // whose servers are asked for; none: all
}

// Server is a file server of a shared file system of the site.
type Server struct {
	Filesystem string `json:"filesystem"`
	Host       string `json:"host"`
	Way        string `json:"way"` // how the limits of nodes act there
}

// Answer says whether all was done, or why nothing was.
type Answer struct {
	Taken  *Thing      `json:"taken,omitempty"` // is another node's
	By     *Holder     `json:"by,omitempty"`
	Kind   refuse.Kind `json:"kind,omitempty"` // with What and Remedy: a refusal
	What   string      `json:"what,omitempty"`
	Remedy string      `json:"remedy,omitempty"`

	Servers []Server `json:"servers,omitempty"` // of the file systems that were asked for, sorted by file system and host
	Away    []string `json:"away,omitempty"`    // hosts of the site whose agents are not heard of, sorted
}

// Patience is how long a command waits for the agent: longer than the agent waits for the cluster state.
const Patience = 10 * time.Second

// Agent is the host's agent as a node's claims reach it. It is part of journals.
type Agent struct {
	Host   string `json:"host"`   // this host's name in the site
	Socket string `json:"socket"` // of the agent
	Owed   string `json:"owed"`   // folder of the things that were given up and that the site must still be told of
}

// AgentOf returns the agent of a host; nil if the host is alone.
func AgentOf(l layout.Layout, m *Member) *Agent {
	if m == nil {
		return nil
	}
	return &Agent{Host: m.Host, Socket: l.SiteSocket(), Owed: l.SiteOwed()}
}

// Taken is the error of a claim of something that another node has.
type Taken struct {
	Thing Thing
	By    Holder
}

func (t *Taken) Error() string {
	return fmt.Sprintf("%s is taken in this site: node %s of host %s has it since %s", t.Thing, t.By.Node, t.By.Host, t.By.Since.Local().Format("2006-01-02 15:04:05"))
}

// refusal returns the refusal of a thing that another node has, with its remedy.
func (t *Taken) refusal(node string) error {
	remedy := "choose another, or remove that node"
	return &refuse.Error{Kind: refuse.Busy, What: fmt.Sprintf("node %s: %v", node, t), Remedy: remedy + "; if its host is gone for good: berth host forget " + t.By.Host, Err: t}
}

// Claim claims all things for a node, or none. Things that the node has already are no conflict. The error is a *Taken, as a
// refusal (Busy), or says that the agent or the cluster state is away.
func (a *Agent) Claim(ctx context.Context, node string, things ...Thing) error {
	answer, err := a.ask(ctx, Request{Do: "claim", Node: node, Things: things})
	if err != nil {
		return &refuse.Error{
			Kind: refuse.Cannot, What: fmt.Sprintf("node %s: its name, MACs and addresses cannot be claimed in the site: the agent of this host does not answer: %v", node, err),
			Remedy: "start berthd (with systemd: systemctl start berthd) and try again; nodes that are there run on", Err: err,
		}
	}
	if answer.Taken != nil && answer.By != nil {
		return (&Taken{Thing: *answer.Taken, By: *answer.By}).refusal(node)
	}
	return answer.err(node)
}

// Release gives things of a node up. If the agent or the cluster state is away, that is noted, and the agent tells the site
// later.
func (a *Agent) Release(ctx context.Context, node string, things ...Thing) error {
	answer, err := a.ask(ctx, Request{Do: "release", Node: node, Things: things})
	if err == nil {
		err = answer.err(node)
	}
	if err == nil {
		return nil
	}
	return Owe(a.Owed, node, things...)
}

// Stale says why changes in the site may not reach this host now; "" if they do. It takes a few seconds at most. away are the hosts of the
// site whose agents are not heard of, as the agent knows it.
func (a *Agent) Stale(ctx context.Context) (why string, away []string) {
	ctx, cancel := context.WithTimeout(ctx, 2*Fresh)
	defer cancel()
	answer, err := a.ask(ctx, Request{Do: "follow"})
	switch {
	case errors.Is(err, fs.ErrPermission): // only root may ask
		return "", nil
	case err != nil && ctx.Err() != nil:
		return "berthd does not answer: what changes now in the site is not enforced here until it does", nil
	case err != nil:
		return "berthd does not run: what changes now in the site is not enforced here until it does", nil
	}
	return answer.What, answer.Away
}

// Servers lists the file servers of file systems, as the agent knows them; an agent that has not heard of the site yet refuses. It answers
// from its memory: one that hangs is not waited for, where many nodes are shown.
func (a *Agent) Servers(ctx context.Context, filesystems []string) ([]Server, error) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	answer, err := a.ask(ctx, Request{Do: "servers", Filesystems: filesystems})
	if err == nil && answer.What != "" {
		err = errors.New(answer.What)
	}
	return answer.Servers, err
}

// Fresh is how long an agent waits for the cluster state when it is asked whether it hears it.
const Fresh = 1500 * time.Millisecond

func (a Answer) err(node string) error {
	if a.What == "" {
		return nil
	}
	return &refuse.Error{Kind: a.Kind, What: "node " + node + ": " + a.What, Remedy: a.Remedy}
}

// ask asks the agent once.
func (a *Agent) ask(ctx context.Context, r Request) (answer Answer, err error) {
	dialer := net.Dialer{Timeout: Patience}
	c, err := dialer.DialContext(ctx, "unix", a.Socket)
	if err != nil {
		return answer, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := c.SetDeadline(time.Now().Add(Patience)); err != nil {
		return answer, err
	}
	if err := json.NewEncoder(c).Encode(r); err != nil {
		return answer, err
	}
	return answer, json.NewDecoder(c).Decode(&answer)
}

// Debt is something that a node has given up and the site was not told of.
type Debt struct {
	Thing Thing
	Node  string
}

// Owe notes things that the site must be told a node gave up: an empty file KIND=VALUE=NODE each. Several nodes may owe one
// thing: a node that could not claim what another one owes gives it up as well.
func Owe(dir, node string, things ...Thing) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("note what node %s has given up: %w", node, err)
	}
	for _, t := range things {
		f, err := os.OpenFile(Debt{t, node}.path(dir), os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return fmt.Errorf("note that node %s has given up %s: %w", node, t, err)
		}
		f.Close()
	}
	return file.SyncDir(dir)
}

// Owed lists the things that the site must be told were given up.
func Owed(dir string) (all []Debt, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list what the site was not told: %w", err)
	}
	for _, e := range entries {
		if parts := strings.Split(e.Name(), "="); len(parts) == 3 {
			all = append(all, Debt{Thing{Kind: Kind(parts[0]), Value: parts[1]}, parts[2]})
		}
	}
	return all, nil
}

// Settled removes the note of a debt.
func (d Debt) Settled(dir string) error {
	if err := file.Remove(d.path(dir)); err != nil {
		return fmt.Errorf("forget that %s was given up: %w", d.Thing, err)
	}
	return nil
}

func (d Debt) path(dir string) string {
	return filepath.Join(dir, strings.Join([]string{string(d.Thing.Kind), d.Thing.Value, d.Node}, "="))
}
