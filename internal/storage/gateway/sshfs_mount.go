package gateway

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/host"
	"berth/internal/host/group"
	"berth/internal/storage/mounts"
	"berth/internal/sys/fault"
	"berth/internal/sys/file"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/proc"
	"berth/internal/sys/refuse"
)

// SSHFSMount mounts a folder of a file server in a running node, and starts the daemon that serves the mount: a Helper.
type SSHFSMount struct {
	Node     string    `json:"node"`
	Target   string    `json:"target"`
	ReadOnly bool      `json:"read_only,omitempty"`
	Host     string    `json:"host"`   // as the spec names it
	Server   string    `json:"server"` // its address and port
	Path     string    `json:"path"`   // of the folder, on the server
	SSH      *SSHLogin `json:"ssh,omitempty"`
	UID      uint32    `json:"uid"` // the files' owner, inside
	GID      uint32    `json:"gid"`
	Tuning   []string  `json:"tuning,omitempty"` // options of sshfs

	Hold mounts.Hold `json:"hold,omitzero"`  // with via: host, the namespace that keeps the mount
	User string      `json:"user,omitempty"` // with via: host, the node's name among the mount's users

	PIDFile string       `json:"pid_file"` // of the node
	Note    string       `json:"note"`     // file with the identities of the processes: written before the node sees the mount
	Dir     string       `json:"dir"`      // the node's live folder
	Cgroups host.Cgroups `json:"cgroups"`
	Group   string       `json:"group,omitempty"`

	Daemon  Daemon `json:"daemon,omitzero"`
	Mounted uint64 `json:"mounted,omitempty"` // number of the file system that was mounted last
	At      string `json:"at,omitempty"`      // where: Target without links
}

// SSHLogin is how ssh logs in at the server. The files are read at each start of the daemon.
type SSHLogin struct {
	User       string `json:"user"`
	Identity   string `json:"identity"`
	KnownHosts string `json:"known_hosts"`
}

// Daemon is the processes that serve a mount.
type Daemon struct {
	SSHFS proc.ID `json:"sshfs,omitzero"`
	SSH   proc.ID `json:"ssh,omitzero"` // carries the connection; it ends when sshfs does, and the other way round
}

// Kind implements step.Step.
func (s *SSHFSMount) Kind() string { return "sshfs.mount" }

func (s *SSHFSMount) String() string {
	by, ro := "sshfs-direct", ""
	if s.SSH != nil {
		by = "sshfs as user " + s.SSH.User
	}
	if s.shared() {
		by += ", one mount for all nodes of the host"
	}
	if s.ReadOnly {
		ro = ", read-only"
	}
	for _, o := range s.Tuning {
		ro += ", " + o
	}
	return fmt.Sprintf("mount %s of %s (%s) at %s by %s, owner %d:%d%s", s.Path, s.Host, s.Server, s.Target, by, s.UID, s.GID, ro)
}

// Process implements Helper.
func (s *SSHFSMount) Process() proc.ID { return s.Daemon.SSHFS }

// firstAnswer is how long the server has to answer at a start.
const firstAnswer = 20 * time.Second

// Do starts the daemon and puts the mount into the node. If there was a daemon, it has ended: its mount is replaced.
func (s *SSHFSMount) Do(ctx context.Context) error {
	node, ids, err := s.node()
	if err != nil {
		return err
	}
	if s.shared() {
		err = s.users().alone(ctx, func() error { return s.share(ctx, node, ids) })
	} else {
		err = s.own(ctx, node, ids)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("mount %s: %w", s.Target, err), s.Undo(context.WithoutCancel(ctx)))
	}
	fault.Point("sshfs mounted in the node")
	return nil
}

// own starts a daemon of the node's own.
func (s *SSHFSMount) own(ctx context.Context, node mounts.Running, ids idsInside) error {
	if err := s.end(ctx); err != nil {
		return err
	}
	m, err := s.serve(ctx, node, ids)
	if err != nil {
		return err
	}
	defer m.Close()
	if s.SSH != nil { // connected: now the node's limits hold ssh too
		if err := group.MoveHelper(s.Cgroups, s.Group, s.Daemon.SSH.PID); err != nil {
			return err
		}
	}
	at, err := m.Put(node, s.place(), s.Mounted)
	if err != nil {
		return err
	}
	s.Mounted, s.At = m.Device, at
	return nil
}

// place is where the mount is, or comes to.
func (s *SSHFSMount) place() string {
	if s.Mounted != 0 && s.At != "" {
		return s.At
	}
	return s.Target
}

// serve starts a daemon, notes it, and returns the mount that it serves when the server has answered.
func (s *SSHFSMount) serve(ctx context.Context, node mounts.Running, ids idsInside) (*mounts.FUSE, error) {
	fuse, err := os.OpenFile(fuseDevice, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer fuse.Close()
	m, err := mounts.NewFUSE(fuse, s.Host+":"+s.Path, s.ReadOnly)
	if err != nil {
		return nil, err
	}
	said, err := s.start(ctx, node, ids, fuse)
	if err != nil {
		m.Close()
		return nil, err
	}
	defer said.Close()
	fuse.Close() // the daemon's end must end the mount
	fault.Point("daemon of sshfs started")
	if err = file.WriteJSONForBoot(s.Note, s.Daemon); err == nil {
		fault.Point("daemon of sshfs noted")
		err = s.answer(ctx, m, said)
	}
	if err != nil {
		m.Close()
		return nil, errors.Join(err, s.end(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// answer waits until the server has answered for the folder.
func (s *SSHFSMount) answer(ctx context.Context, m *mounts.FUSE, said *complaints) error {
	ctx, stop := context.WithTimeoutCause(ctx, firstAnswer, fmt.Errorf("file server %s does not answer within %s", s.Server, firstAnswer))
	defer stop()
	asked := make(chan error, 1)
	go func() { asked <- m.Ask() }()
	var err error
	select {
	case err = <-asked:
	case <-ctx.Done():
		_ = s.end(context.WithoutCancel(ctx)) // the kernel then answers for the daemon
		<-asked                               //nolint:errcheck // the mount has no daemon any more
		return context.Cause(ctx)
	}
	if errors.Is(err, unix.ENOENT) {
		return refuse.NotFoundf("there is no %s on file server %s", s.Path, s.Host)
	}
	if err == nil {
		return nil
	}
	if text := said.text(); text != "" {
		return fmt.Errorf("file server %s (%s): %s: %w", s.Host, s.Server, text, err)
	}
	return fmt.Errorf("file server %s (%s) ended the connection: %w", s.Host, s.Server, err)
}

// Verify checks that the daemon runs and answers.
func (s *SSHFSMount) Verify(context.Context) error {
	if !s.Daemon.SSHFS.Alive() {
		return fmt.Errorf("the daemon of mount %s (%d) does not run", s.Target, s.Daemon.SSHFS.PID)
	}
	return nil
}

// Undo ends the daemon, unless other nodes use it. The mount has ended with the node's mount namespace.
func (s *SSHFSMount) Undo(ctx context.Context) error {
	if s.shared() {
		return s.unshare(ctx)
	}
	return s.end(ctx)
}

// end ends the processes, those of the note too: a killed Do has noted them, and the journal does not know them.
func (s *SSHFSMount) end(ctx context.Context) error {
	noted, err := s.noted()
	if err != nil {
		return err
	}
	for _, id := range []proc.ID{s.Daemon.SSHFS, noted.SSHFS, s.Daemon.SSH, noted.SSH} {
		if err := endProcess(ctx, id); err != nil {
			return fmt.Errorf("end the daemon of mount %s: %w", s.Target, err)
		}
	}
	s.Daemon = Daemon{}
	for _, path := range []string{s.Note, s.Note + file.Unwritten} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// noted reads which processes serve the mount.
func (s *SSHFSMount) noted() (d Daemon, err error) {
	note := jsonfile.File{Path: s.Note, Is: "the processes that serve mount " + s.Target, Remedy: "end them (sshfs, ssh) and remove the file"}
	if err := note.Read(&d); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("read which processes serve mount %s: %w", s.Target, err)
	}
	return d, nil
}

// toFinish is how long a daemon has to send its last data.
const toFinish = 2 * time.Second

// endProcess ends a process, first by SIGTERM.
func endProcess(ctx context.Context, id proc.ID) error {
	if id == (proc.ID{}) {
		return nil
	}
	pidfd, err := id.Open()
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer pidfd.Close()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := proc.Signal(pidfd, sig); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		if sig == unix.SIGTERM && proc.WaitFor(ctx, pidfd, toFinish) {
			return nil
		}
	}
	return proc.Wait(ctx, pidfd)
}

// idsInside maps the ids of a node to the host's.
type idsInside struct{ uid, gid []idRange }

type idRange struct{ inside, host, count uint32 }

// node finds the node's process 1 and its ids.
func (s *SSHFSMount) node() (mounts.Running, idsInside, error) {
	text, err := os.ReadFile(s.PIDFile)
	if err != nil {
		return mounts.Running{}, idsInside{}, fmt.Errorf("find the node's process 1: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return mounts.Running{}, idsInside{}, fmt.Errorf("find the node's process 1: %w", err)
	}
	id, err := proc.Of(pid)
	if err != nil {
		return mounts.Running{}, idsInside{}, err
	}
	var ids idsInside
	if ids.uid, err = readMap(pid, "uid_map"); err == nil {
		ids.gid, err = readMap(pid, "gid_map")
	}
	return mounts.Running{PID: pid, Start: id.Start}, ids, err
}

func readMap(pid int, name string) ([]idRange, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, name))
	if err != nil {
		return nil, fmt.Errorf("read the node's ids: %w", err)
	}
	defer f.Close()
	var all []idRange
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var r idRange
		if _, err := fmt.Sscan(lines.Text(), &r.inside, &r.host, &r.count); err != nil {
			return nil, fmt.Errorf("read the node's ids: %q: %w", lines.Text(), err)
		}
		all = append(all, r)
	}
	return all, lines.Err()
}

// onHost returns the host's id of an id inside.
func onHost(m []idRange, id uint32) (uint32, bool) {
	for _, r := range m {
		if id >= r.inside && id-r.inside < r.count {
			return r.host + (id - r.inside), true
		}
	}
	return 0, false
}

// holds reports whether a host's id is one of the node's.
func holds(m []idRange, id uint32) bool {
	for _, r := range m {
		if id >= r.host && id-r.host < r.count {
			return true
		}
	}
	return false
}
