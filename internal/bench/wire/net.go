// Package wire measures the network between an arm and a peer: streams by iperf3, round trips by a client of its own.
package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"berth/internal/bench/side"
	"berth/internal/sys/jsonfile"
	"berth/internal/sys/refuse"
)

// NetOptions say how to reach the peer.
type NetOptions struct {
	Self    string // path of this program, the same in every arm
	Port    int    // of iperf3 at the peer; round trips use the next one. Default DefaultPort
	OwnPeer bool   // the peer is on this machine
	Streams int    // TCP streams at once; default 1
	Window  string // of each, iperf3's --window; default: the kernel's own choice
}

// NetArm is one way to reach the peer. The first of a run is the host's, with which the others are compared.
type NetArm struct {
	Name string // "host", or the mode of a node's network
	Run  side.Arm
	Peer string // address of the peer from there
	Node any    // the node's spec, put into the report as JSON; nil for the host
}

// The rows of a network report.
const (
	ToPeer    = "to the peer"
	FromPeer  = "from the peer"
	RoundTrip = "round trip"
)

// CheckRun is the length of a trial of the warm-up round, in which all that can fail is tried once.
const CheckRun = time.Second

// Complete fills in the port and checks it.
func (o *NetOptions) Complete() error {
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	if o.Port < 1 || o.Port > 65534 {
		return refuse.Invalidf("port %d; it lies between 1 and 65534", o.Port)
	}
	return nil
}

// HasIperf refuses where iperf3 is not installed.
func HasIperf() error {
	if _, err := exec.LookPath("iperf3"); err != nil {
		return refuse.Cannotf(iperfRemedy, "iperf3, which does the measuring, is not installed")
	}
	return nil
}

// patience is how long a peer may take to answer: one that was just started, a bridge that learns a new port.
const patience = 3 * time.Second

// Reach makes one round trip, so that a peer that is not there is told from all that may fail later.
func (o *NetOptions) Reach(ctx context.Context, a NetArm) error {
	for begun := time.Now(); ; {
		p, err := RoundTrips(ctx, a, o, time.Millisecond, 0)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			return nil
		case p.Error == "":
			return err // the command itself failed
		case time.Since(begun) > patience:
			return o.silent(a, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// silent says that the peer does not answer.
func (o *NetOptions) silent(a NetArm, err error) error {
	remedy := fmt.Sprintf("run berth bench net --serve on it, and let TCP ports %d and %d through", o.Port, o.Port+1)
	if o.OwnPeer {
		remedy = "look for packet filter rules that stop what is forwarded by bridges (berth doctor)"
	}
	from := "the host"
	if a.Node != nil {
		from = "a node of mode " + a.Name
	}
	return refuse.Cannotf(remedy, "the peer %s does not answer %s: %w", a.Peer, from, err)
}

// Stream runs iperf3 in an arm, CPU time counted beside it. A server that is still busy with the stream before is asked again.
func (o *NetOptions) Stream(ctx context.Context, a NetArm, row string, run, warm time.Duration) (map[string]float64, error) {
	for begun := time.Now(); ; {
		v, err := o.stream(ctx, a, row, run, warm)
		var said *errStream
		if !errors.As(err, &said) || !strings.Contains(said.said, "server is busy") || time.Since(begun) > patience {
			return v, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// stream makes one attempt.
func (o *NetOptions) stream(ctx context.Context, a NetArm, row string, run, warm time.Duration) (map[string]float64, error) {
	argv := append([]string{o.Self, "bench", "cpu", "--"}, o.StreamCommand(row, a.Peer, run, warm)...)
	var spent Spent
	if err := call(ctx, a.Run, argv, &spent); err != nil {
		return nil, err
	}
	if spent.Stdout == "" && spent.Error != "" {
		return nil, errors.New(spent.Error)
	}
	m, err := parseIperf([]byte(spent.Stdout), spent.CPU)
	var said *errStream
	if errors.As(err, &said) && strings.Contains(said.said, "unable to connect") { // its only sign: it has one exit code
		return nil, o.silent(a, err)
	}
	return m, err
}

// RoundTrips makes round trips in an arm. The error is Pinged.Error's where that is set.
func RoundTrips(ctx context.Context, a NetArm, o *NetOptions, run, warm time.Duration) (Pinged, error) {
	peer := net.JoinHostPort(a.Peer, strconv.Itoa(o.Port+1))
	var p Pinged
	if err := call(ctx, a.Run, []string{o.Self, "bench", "ping", peer, "--run", run.String(), "--warm", warm.String()}, &p); err != nil {
		return Pinged{}, err
	}
	switch {
	case p.Error != "":
		return p, errors.New(p.Error)
	case p.Trips <= 0 || !(p.P50 > 0) || !(p.P99 >= p.P50):
		return Pinged{}, errors.New("read the round trips: the numbers make no sense")
	}
	return p, nil
}

// call runs a command of Berth's own in an arm and reads the JSON that it prints.
func call(ctx context.Context, run side.Arm, argv []string, v any) error {
	out, err := run(ctx, argv)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, v); err != nil {
		return fmt.Errorf("read what %s %s printed: %s", argv[1], argv[2], jsonfile.Wrong(out, err))
	}
	return nil
}
