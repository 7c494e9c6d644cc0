// Command berthd is the agent of a host: it answers Berth's API, and makes the host one of a site.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"berth/internal/site/agent"
	"berth/internal/site/agentconf"
	"berth/internal/sys/fork"
	"berth/internal/sys/layout"
	"berth/internal/sys/refuse"
	"berth/internal/sys/sibling"
	"berth/internal/sys/text"
	"berth/internal/sys/version"
)

const usage = `berthd is the agent of this host: it answers Berth's API on /run/berth/berthd.sock, and over
TLS once the host has a certificate, and makes the host one of a site.

Usage:
  berthd                      run, as the file /etc/berth/berthd.yaml says
  berthd --check [FILE]       say what is wrong with the file; exit code 2 if anything is
  berthd --leave              take this host, which has no nodes, out of its site
  berthd --backup FILE        write what the embedded cluster state holds, while it runs
  berthd --restore FILE       make the embedded cluster state from a backup, while nothing runs
  berthd --schema             print the JSON Schema of the file
  berthd --version

Flags:
  --config FILE               another file
  --root DIR                  as berth --root: another place for everything; its file is DIR/berthd.yaml

A restart reads the file again. No node notices it.
Documentation: docs/agent.md, or man berthd
`

func main() {
	// Override the caller's umask: others must not write to sockets and files, and a node's root must traverse its live folders.
	syscall.Umask(0o022)
	signal.Ignore(syscall.SIGHUP) // a new file is read by a restart, which no node notices
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the command line.
type options struct {
	check, leave, schema, version bool
	config, root                  string
	backup, restore               string
	rest                          []string
}

func parse(args []string, stderr io.Writer) (o options, err error) {
	f := flag.NewFlagSet("berthd", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() { fmt.Fprint(stderr, usage) }
	f.BoolVar(&o.check, "check", false, "")
	f.BoolVar(&o.leave, "leave", false, "")
	f.BoolVar(&o.schema, "schema", false, "")
	f.BoolVar(&o.version, "version", false, "")
	f.StringVar(&o.backup, "backup", "", "")
	f.StringVar(&o.restore, "restore", "", "")
	f.StringVar(&o.config, "config", "", "")
	f.StringVar(&o.root, "root", "", "")
	if err := f.Parse(args); err != nil {
		return o, err
	}
	o.rest = f.Args()
	if most := map[bool]int{true: 1}[o.check]; len(o.rest) > most {
		return o, refuse.Invalidf("%q: berthd takes no such argument; berthd --help lists what it takes", o.rest[most])
	}
	return o, nil
}

// run is the program: its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = act(ctx, o, stdout, stderr)
	} else if refuse.KindOf(err) == refuse.Failed { // said by package flag, with the usage
		return int(refuse.Invalid)
	}
	if err != nil {
		message := err.Error()
		if strings.Contains(message, "\n") {
			fmt.Fprintln(stderr, message) // places of mistakes, a line each
		} else {
			text.Wrap(stderr, text.Columns(stderr), len("berthd: "), "berthd: ", message)
		}
	}
	return int(refuse.KindOf(err))
}

func act(ctx context.Context, o options, stdout, stderr io.Writer) error {
	l := layout.New(o.root)
	if o.config == "" {
		o.config = agentconf.Path(l)
	}
	switch {
	case o.version:
		fmt.Fprintln(stdout, "berthd", version.Berth)
		return nil
	case o.schema:
		s, err := agentconf.Schema()
		fmt.Fprintf(stdout, "%s\n", s)
		return err
	case o.check && len(o.rest) == 1:
		o.config = o.rest[0]
	}
	c, err := agentconf.Read(l, o.config)
	if err != nil || o.check {
		return err
	}
	if os.Geteuid() != 0 {
		return refuse.Cannotf("run berthd as root", "only root can answer for a host")
	}
	switch {
	case o.backup != "":
		return agent.Backup(ctx, c, o.backup)
	case o.restore != "":
		return agent.Restore(c, l, o.restore)
	}
	if err := actForBerth(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	slog.SetDefault(log)
	if o.leave {
		return agent.Leave(ctx, c, l, log)
	}
	return agent.Serve(ctx, c, l, log, func(_ *agent.Agent, at []net.Addr) {
		log.Info("berthd answers", "host", c.Host, "site", c.Site, "socket", c.Socket, "tls", at, "version", version.Berth)
	})
}

// actForBerth makes what this program starts on behalf of nodes, as the keeper, be the program berth.
func actForBerth() error {
	path, err := sibling.Find("berth", "berthd starts what nodes need", "install it beside berthd: make install puts both there")
	if err == nil {
		fork.ActFor(path)
	}
	return err
}
