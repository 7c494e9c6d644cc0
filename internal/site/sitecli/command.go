package sitecli

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"berth/internal/site/api"
	"berth/internal/site/api/client"
	"berth/internal/site/certs"
	"berth/internal/sys/text"
)

// client returns a client of the agent that --host names; without it of this host's own.
func (a *app) client() (*client.Client, error) {
	target := a.host
	if target == "" {
		l, err := a.layout()
		if err != nil {
			return nil, err
		}
		target = "unix:" + l.AgentSocket()
	}
	return client.New(target, func(host string) (*tls.Config, error) {
		dir, err := certs.UserDir()
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(filepath.Join(dir, certs.UserCert)); err != nil && os.Geteuid() == 0 {
			dir = certs.HostDir // a host asks for itself
		}
		return certs.Client(dir, host)
	})
}

// commandCmd is the command that berth --host becomes: a command line of berth on another host.
func (a *app) commandCmd() *cobra.Command {
	var files []string
	c := &cobra.Command{
		Use: "command -- ARG…", Short: "run a command line of berth on another host (berth --host)", Hidden: true, Args: cobra.ArbitraryArgs,
		Long:    "Run a command line of berth on the host that --host names. No need to call it: berth --host does.",
		Example: "  berth --host node7 ls",
		RunE: func(cmd *cobra.Command, args []string) error {
			start := api.Start{Args: args}
			for _, name := range files {
				start.Files = append(start.Files, read(name))
			}
			var err error
			a.code, err = a.relay(cmd.Context(), "/v1/command", start)
			return err
		},
	}
	c.Flags().StringArrayVar(&files, "file", nil, "a `FILE` of this host that the command line names")
	return c
}

// longestFile is the most bytes of a file that are sent: a byte more than a spec may have.
const longestFile = 1<<20 + 1

// read reads a file that goes along. Why it cannot be read the command there says, in its own words.
func read(name string) api.File {
	f := api.File{Name: name}
	var err error
	if f.Dir, err = filepath.Abs(filepath.Dir(name)); err != nil {
		f.Dir = "/"
	}
	file, err := os.Open(name)
	if err == nil {
		defer file.Close()
		f.Content, err = io.ReadAll(io.LimitReader(file, longestFile))
	}
	if err != nil {
		var why syscall.Errno
		if !errors.As(err, &why) {
			why = unix.EIO
		}
		f.Errno = uint32(why)
	}
	return f
}

// relay runs a command on another host as if it ran here: with these streams, this terminal, these signals.
func (a *app) relay(ctx context.Context, path string, start api.Start) (int, error) {
	c, err := a.client()
	if err != nil {
		return 0, err
	}
	out := os.Stdout
	isTerminal := func(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }
	start.Terminals = [3]bool{isTerminal(a.In), isTerminal(out), isTerminal(os.Stderr)}
	start.Term = os.Getenv("TERM")
	_, start.NoColor = os.LookupEnv("NO_COLOR")
	s := client.Streams{In: a.In, Out: text.Raw(a.Out), Err: os.Stderr}
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH)
	defer signal.Stop(signals)
	names, sizes := make(chan string), make(chan [2]uint16)
	s.Signals, s.Sizes = names, sizes
	screen := a.In
	if !start.Terminals[0] {
		screen = out
	}
	size := func() (rows, columns uint16) {
		if w, err := unix.IoctlGetWinsize(int(screen.Fd()), unix.TIOCGWINSZ); err == nil {
			return w.Row, w.Col
		}
		return 0, 0
	}
	start.Rows, start.Columns = size()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // signals are for the command
	defer cancel()
	go func() {
		for {
			select {
			case sig := <-signals:
				if sig == syscall.SIGWINCH {
					rows, columns := size()
					select {
					case sizes <- [2]uint16{rows, columns}:
					case <-ctx.Done():
					}
					continue
				}
				select {
				case names <- unix.SignalName(sig.(syscall.Signal)):
				case <-ctx.Done():
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	// With both ends at a terminal, the one on the other host does all that a terminal does; this one passes bytes on.
	if start.Terminals[0] && start.Terminals[1] {
		old, err := term.MakeRaw(int(a.In.Fd()))
		if err != nil {
			return 0, err
		}
		defer func() { _ = term.Restore(int(a.In.Fd()), old) }()
	}
	return c.Command(ctx, path, start, s)
}
