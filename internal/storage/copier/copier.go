// Package copier reads and writes the files of a node in a process that may do in the node what the node's root may, and nothing
// else.
//
// A running node changes its files while they are copied: a path that was a folder is a link to somewhere else a moment later. So
// the copier works where such a link leads nowhere but into the node, and where a mistake gains nothing:
//
//   - its root is the node's, as process 1 sees it: with the node's mounts;
//   - its user namespace maps the node's ids and no others. It is a sibling of the node's, not the node's own, so the node's root
//     has no rights over the copier: it cannot trace, dump or signal it. It is in the host's pid namespace, so the node does not
//     see it;
//   - it is in the node's groups from its first instruction: the node's limits hold the copy;
//   - it keeps only the capabilities that files need;
//   - its program is a sealed copy of berth in memory (memfd) that nobody but the host's root may read. The kernel lets nobody
//     dump or trace such a process, and there is no file of the host behind it that could be written to (CVE-2019-5736).
//
// The other side of the copy is berth itself, and between them is a pipe with a tar stream (package treetar).
package copier

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fork"
	"berth/internal/sys/refuse"
	"berth/internal/sys/thread"
	"berth/internal/sys/treetar"
)

// Node is the node whose files are copied.
type Node struct {
	Name   string
	Root   *os.File     // its root folder, opened with O_PATH
	IDs    mounts.IDs   // its ids on the host; zero: no user namespace
	Groups host.Cgroups // where its group is
	Group  string       // path of its group; "" for a node that does not run
	There  There        // nil: its files are this host's, by Root
}

// There runs the copier with these words where the node's files are, in a machine, until ctx ends; wait waits for its end.
type There func(ctx context.Context, words []string, in, out, report *os.File) (wait func() (unix.WaitStatus, error), err error)

// Job is the task of a copier.
type Job struct {
	List     bool   // tell the names in the folder of Path that begin as it does, each with a zero byte
	Write    bool   // write the stream's tree into the node, instead of reading one from it
	Node     string // its name, for messages
	Path     string `json:"-"` // in the node; any bytes, so it goes beside the JSON
	Top      string `json:"-"` // name of the top in the stream, likewise; "" for the content of a folder
	Exists   bool   // Path must be there
	Owners   bool   // keep owners
	UID, GID int    // owner of the written files, if owners are not kept
	Harmless bool   // leave out what could harm the host: set-id bits and capabilities
	Bare     bool   // without what is mounted in Path
	Measure  bool   // tell first how much there is to read
}

// message is a message of a copier, one JSON object per line.
type message struct {
	Total  int64          `json:"total,omitempty"`
	Done   bool           `json:"done,omitempty"`
	Tally  *treetar.Tally `json:"tally,omitempty"`
	Kind   refuse.Kind    `json:"kind,omitempty"`
	What   []byte         `json:"what,omitempty"` // may name a file, by any bytes
	Remedy []byte         `json:"remedy,omitempty"`
	Broken bool           `json:"broken,omitempty"` // its stream has no reader any more
}

// mostWords is how many characters of a guest's words are shown.
const mostWords = 500

// distrust makes a message that a machine's guest may have written harmless: an error is one, and what the guest says cannot be taken
// for Berth's own words or advice.
func (m *message) distrust(node string) {
	m.Remedy = nil
	if len(m.What) > 0 {
		m.What = fmt.Appendf(nil, "the guest of node %s says: %.*q", node, mostWords, m.What)
	}
	if m.Tally != nil && m.Tally.First != "" {
		m.Tally.First = fmt.Sprintf("%.*q", mostWords, m.Tally.First)
	}
	if m.Kind < refuse.Failed || m.Kind > refuse.Busy {
		m.Kind = refuse.Failed
	}
}

// errBroken is the error of a copier whose stream has no reader any more.
var errBroken = errors.New("the reader of the copy went away")

// Running is a copier at work.
type Running struct {
	wait   func() (unix.WaitStatus, error)
	there  bool // in a machine: what it reports may be anything
	report *os.File
	name   string
	ctx    context.Context //nolint:containedctx // Wait says why it ended, as the caller of Start knows it
	cancel func() bool
	end    func() // ends one in a machine
}

// The copier's descriptors, beside its streams.
const (
	rootFD = 3 + iota
	reportFD
	programFD
)

// Start starts a copier. in is the stream that it writes into the node, out the one that it reads; the other one is nil. The
// caller closes its own ends of them, and calls Wait. If ctx ends, or this process, the copier takes back the file that it was
// writing, and ends.
func (n *Node) Start(ctx context.Context, j Job, in, out *os.File) (*Running, error) {
	j.Node = n.Name
	job, err := json.Marshal(j)
	if err != nil {
		return nil, fmt.Errorf("describe the copy: %w", err)
	}
	words := []string{string(job), j.Path, j.Top}
	report, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer theirs.Close()
	r := &Running{report: report, name: n.Name, there: n.There != nil, ctx: ctx}
	ctx, r.end = context.WithCancel(ctx)
	if r.there {
		r.wait, err = n.There(ctx, words, in, out, theirs)
	} else {
		r.wait, err = n.startHere(words, in, out, theirs)
	}
	if err != nil {
		r.end()
		report.Close()
		return nil, err
	}
	r.cancel = context.AfterFunc(ctx, func() { report.Close() })
	return r, nil
}

// startHere starts the copier as a process of this host.
func (n *Node) startHere(words []string, in, out, report *os.File) (wait func() (unix.WaitStatus, error), err error) {
	program, err := sealed()
	if err != nil {
		return nil, err
	}
	defer program.Close()
	cmd := &exec.Cmd{
		Path: fmt.Sprintf("/proc/self/fd/%d", programFD), Args: append([]string{"berth", Command}, words...),
		Env: []string{"GOMAXPROCS=2"}, Dir: "/", ExtraFiles: []*os.File{n.Root, report, program},
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true}, // Ctrl-C is Berth's to handle
	}
	if in != nil { // a nil *os.File in an interface would not be nil
		cmd.Stdin = in
	}
	if out != nil {
		cmd.Stdout = out
	}
	n.IDs.Attr(cmd.SysProcAttr)
	if n.Group != "" {
		err = group.StartHelper(n.Groups, n.Group, cmd)
	} else {
		err = thread.Own(func() error { return fork.Start(cmd) })
	}
	if err != nil {
		return nil, n.startErr(err)
	}
	// When memory is short, the copy should be killed rather than a process of the node. The copier cannot set this itself: only
	// the host's root may write to the /proc files of a process that cannot be dumped.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("1000"), 0)
	return func() (unix.WaitStatus, error) {
		err := fork.Wait(cmd)
		ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
		return unix.WaitStatus(ws), err
	}, nil
}

func (n *Node) startErr(err error) error {
	switch {
	case errors.Is(err, unix.EAGAIN):
		return refuse.Busyf("node %s has no room for one more process (pids); berth set %s pids=NUMBER gives it more: %w", n.Name, n.Name, err)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return refuse.Cannotf("allow programs in memory (sysctl vm.memfd_noexec below 2) and user namespaces (user.max_user_namespaces)",
			"start a copier for node %s: %w", n.Name, err)
	}
	return fmt.Errorf("start a copier for node %s: %w", n.Name, err)
}

// Stop ends a copier.
func (r *Running) Stop() {
	if r.cancel() {
		r.report.Close()
	}
	r.end()
}

// Wait waits for the end of the copier. total is told how much there is to read, if the job asks for it.
func (r *Running) Wait(total func(int64)) (treetar.Tally, error) {
	var last message
	lines := bufio.NewScanner(r.report)
	for lines.Scan() {
		var m message
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			continue
		}
		if m.Total > 0 && total != nil {
			total(m.Total)
		}
		last = m
	}
	r.cancel()
	r.report.Close()
	ws, ended := r.wait()
	r.end()
	if r.there {
		last.distrust(r.name)
	}
	var tally treetar.Tally
	if last.Tally != nil {
		tally.Add(*last.Tally)
	}
	switch {
	case last.Done && len(last.What) == 0:
		return tally, nil
	case last.Broken:
		return tally, errBroken
	case len(last.What) > 0 && last.Kind == refuse.Failed:
		return tally, errors.New(string(last.What))
	case len(last.What) > 0:
		return tally, &refuse.Error{Kind: last.Kind, What: string(last.What), Remedy: string(last.Remedy)}
	}
	if r.ctx.Err() != nil {
		return tally, context.Cause(r.ctx)
	}
	if ws.Signaled() && ws.Signal() == unix.SIGKILL {
		return tally, fmt.Errorf("the copier in node %s was killed: the node ended, or is at its limit of memory", r.name)
	}
	return tally, fmt.Errorf("the copier in node %s ended early: %w", r.name, cmpErr(ended))
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("it said nothing")
	}
	return err
}
