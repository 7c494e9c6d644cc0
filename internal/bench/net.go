package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/jsonfile"
	"berth/internal/refuse"
)

// NetOptions say how to measure. The zero value of a field means its default.
type NetOptions struct {
	Self      string        // path of this program, the same in every arm
	Port      int           // of iperf3 at the peer; round trips use the next one. Default DefaultPort
	Quick     bool          // 1 s after 1 s
	Run, Warm time.Duration // of one trial, and before it, whole seconds; default 20 s and 3 s
	Pairs     int           // blocks a row; default MinPairs
	MarginPct float64       // for the verdicts; default 5, 10 when Quick
	Seed      uint64        // of the order; default: a random one
	OwnPeer   bool          // the peer is on this machine
	Streams   int           // TCP streams at once; default 1
	Window    string        // of each, iperf3's --window; default: the kernel's own choice
}

// NetArm is one way to reach the peer. The first of a run is the host's, with which the others are compared.
type NetArm struct {
	Name string // "host", or the mode of a node's network
	Run  Arm
	Peer string // address of the peer from there
	Node any    // the node's spec, put into the report as JSON; nil for the host
}

// The rows of a network report.
const (
	toPeer    = "to the peer"
	fromPeer  = "from the peer"
	roundTrip = "round trip"
)

// checkRun is the length of a trial of the warm-up round, in which all that can fail is tried once.
const checkRun = time.Second

// RunNet measures what a node's network costs: throughput in both directions, CPU time, round trips. It returns a
// report, marked partial, beside the error when the run was interrupted or an arm broke after something had been
// measured; else a report or an error. No command runs any more when it returns. progress may be nil.
func RunNet(ctx context.Context, o NetOptions, arms []NetArm, progress func(Progress)) (*NetReport, error) {
	if progress == nil {
		progress = func(Progress) {}
	}
	if err := o.Complete(); err != nil {
		return nil, err
	}
	again := arms[0]
	again.Name = nullArm
	arms = slices.Insert(slices.Clone(arms), 1, again)
	version, err := iperfVersion(ctx, arms)
	if err != nil {
		return nil, err
	}
	for _, a := range arms {
		if err := o.reach(ctx, a); err != nil {
			return nil, err
		}
	}
	where, err := Computer()
	if err != nil {
		return nil, err
	}
	rep := &NetReport{
		Format: NetFormat, Started: time.Now().UTC(), Seed: o.Seed, Quick: o.Quick, Pairs: o.Pairs, MarginPct: o.MarginPct,
		RunMillis: o.Run.Milliseconds(), Warm: o.Warm.Milliseconds(), Iperf: version, Machine: where, OwnPeer: o.OwnPeer,
	}
	for _, a := range arms {
		info := NetArmInfo{Name: a.Name, Peer: a.Peer}
		if a.Node != nil {
			if info.Node, err = json.Marshal(a.Node); err != nil {
				return nil, fmt.Errorf("put the node's spec into the report: %w", err)
			}
		}
		rep.Arms = append(rep.Arms, info)
	}
	s := o.series(arms, rep)
	s.progress, s.start = progress, time.Now()
	s.budget = time.Duration(len(s.rows)*len(s.arms)) * (checkRun + time.Duration(o.Pairs)*s.trial)
	return rep.finish(s.run(ctx, func(int) {}))
}

// Complete fills in defaults and checks what was given. RunNet does it too.
func (o *NetOptions) Complete() error {
	def := NetOptions{Run: 20 * time.Second, Warm: 3 * time.Second, MarginPct: 5}
	if o.Quick {
		def = NetOptions{Run: time.Second, Warm: time.Second, MarginPct: 10}
	}
	or(&o.Port, DefaultPort)
	or(&o.Run, def.Run)
	or(&o.Warm, def.Warm)
	or(&o.Pairs, MinPairs)
	or(&o.MarginPct, def.MarginPct)
	or(&o.Seed, uint64(rand.Uint32()))
	const most = time.Hour
	switch {
	case o.Run < time.Second || o.Run > most || o.Run%time.Second != 0:
		return refuse.Invalidf("a trial of %v: iperf3 takes whole seconds, from 1s to 1h", o.Run)
	case o.Warm < time.Second || o.Warm > time.Minute || o.Warm%time.Second != 0:
		return refuse.Invalidf("a warm-up of %v: iperf3 takes whole seconds, from 1s to 1m", o.Warm)
	case o.Port < 1 || o.Port > 65534:
		return refuse.Invalidf("port %d; it lies between 1 and 65534", o.Port)
	case o.MarginPct <= 0 || o.MarginPct >= 100:
		return refuse.Invalidf("the margin is %v %%; it lies between 0 and 100", o.MarginPct)
	case o.Pairs < 0 || o.Pairs > maxPairs:
		return refuse.Invalidf("%d pairs; at most %d", o.Pairs, maxPairs)
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

// iperfVersion returns the version of iperf3 that all arms have, and refuses where one has none or another one.
func iperfVersion(ctx context.Context, arms []NetArm) (string, error) {
	version := ""
	for _, a := range arms {
		out, err := a.Run(ctx, []string{"iperf3", "--version"})
		v, _, _ := strings.Cut(string(out), " (") // "iperf 3.12 (cJSON 1.7.15)"
		v = strings.TrimSpace(v)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil:
			return "", refuse.Cannotf(iperfRemedy+", where the node's image has none: in the image", "iperf3 does not run in the arm %s: %w", a.Name, err)
		case version != "" && v != version:
			return "", refuse.Cannotf("use one version in both, as image host does", "the arms do not have the same iperf3: %s and, in the arm %s, %s", version, a.Name, v)
		}
		version = v
	}
	return version, nil
}

// patience is how long a peer may take to answer: one that was just started, a bridge that learns a new port.
const patience = 3 * time.Second

// reach makes one round trip, so that a peer that is not there is told from all that may fail later.
func (o *NetOptions) reach(ctx context.Context, a NetArm) error {
	for begun := time.Now(); ; {
		p, err := ping(ctx, a, o, time.Millisecond, 0)
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

// series returns the series of trials.
func (o *NetOptions) series(arms []NetArm, rep *NetReport) *series[NetMeasured] {
	s := &series[NetMeasured]{
		rows: []string{toPeer, fromPeer, roundTrip}, pairs: o.Pairs, trial: o.Run + o.Warm,
		order: rand.New(rand.NewPCG(o.Seed, 0)),
		keep:  func(h Head, m *NetMeasured) { rep.Trials = append(rep.Trials, NetTrial{Head: h, NetMeasured: m}) },
	}
	for _, a := range arms {
		s.arms = append(s.arms, a.Name)
	}
	s.measure = func(ctx context.Context, round, row, arm int) (*NetMeasured, error) {
		run, warm := o.Run, o.Warm
		if round == 0 {
			run, warm = checkRun, 0
		}
		ctx, cancel := context.WithTimeout(ctx, run+warm+time.Minute)
		defer cancel()
		if s.rows[row] == roundTrip {
			p, err := ping(ctx, arms[arm], o, run, warm)
			return &NetMeasured{P50: p.P50, P99: p.P99, Trips: p.Trips, RunMillis: p.RunMillis}, err
		}
		return o.stream(ctx, arms[arm], s.rows[row], run, warm)
	}
	return s
}

// stream runs iperf3 in an arm, CPU time counted beside it.
func (o *NetOptions) stream(ctx context.Context, a NetArm, row string, run, warm time.Duration) (*NetMeasured, error) {
	argv := append([]string{o.Self, "bench", "cpu", "--"}, o.streamCommand(row, a.Peer, run, warm)...)
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

// ping makes round trips in an arm. The error is Pinged.Error's where that is set.
func ping(ctx context.Context, a NetArm, o *NetOptions, run, warm time.Duration) (Pinged, error) {
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
func call(ctx context.Context, run Arm, argv []string, v any) error {
	out, err := run(ctx, argv)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(out, v); err != nil {
		return fmt.Errorf("read what %s %s printed: %s", argv[1], argv[2], jsonfile.Wrong(out, err))
	}
	return nil
}
