package syncbed

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"time"

	"berth/internal/bench/bed"
	"berth/internal/bench/fio"
	"berth/internal/bench/result"
	"berth/internal/bench/side"
	"berth/internal/spec/vnode"
)

// The arms of the set foreground.
const (
	aloneArm    = "alone"
	besideArm   = "beside"
	priorityArm = "priority"
)

// The weights of the foreground with a priority, and of everybody else.
const (
	highWeight  = 800
	usualWeight = 100
)

// foregroundRates returns what the competitor is given.
func foregroundRates(quick bool) []vnode.Rate {
	if quick {
		return []vnode.Rate{5e6, 100e6}
	}
	return []vnode.Rate{5e6, 10e6, 20e6, 50e6, 100e6}
}

// loads is how much the foreground reads, bytes.
func loads(o *bed.Options) int64 { return min(64<<20, o.Size) }

// loops is how often the foreground counts when it computes: about a second, or a third of it.
func loops(o *bed.Options) int {
	if o.Quick {
		return 400_000
	}
	return 1_200_000
}

// work loads the file in $0 and computes, and prints how many nanoseconds each took.
const work = `a=$(date +%s%N); dd if="$0" of=/dev/null bs=1M count=$1 iflag=direct 2>/dev/null || exit
b=$(date +%s%N); i=0; while [ $i -lt $2 ]; do i=$((i + 1)); done
c=$(date +%s%N); echo $((b - a)) $((c - b))`

// foreground measures a reader on one server beside another node.
func (s *site) foreground(ctx context.Context, rates []vnode.Rate) error {
	s.weighs = true
	if err := s.serve(ctx, 1); err != nil {
		return err
	}
	name, own, err := s.node(ctx, "own")
	if err != nil {
		return err
	}
	competitor, other, err := s.node(ctx, "other")
	if err != nil {
		return err
	}
	arm := func(name, title string) {
		s.Arms = append(s.Arms, bed.Arm{Arm: result.Arm{Name: name, Title: title}, Run: own})
	}
	arm(aloneArm, "the foreground alone")
	s.WithNull()
	arm(besideArm, "beside the other node")
	why := s.unweighed
	if why == nil {
		why = s.weigh(ctx, name, highWeight)
	}
	if why == nil {
		arm(priorityArm, "beside it, with a priority")
		s.Notes = append(s.Notes, "the disk has BFQ, low_latency off, in all arms")
	} else {
		s.Notes = append(s.Notes, "the arm priority is left out: "+why.Error())
	}
	s.Notes = append(s.Notes, "both nodes, the file server and the other node's reads take CPU time of the same machine")
	for _, r := range rates {
		run := &foregroundRun{site: s, rate: r, node: name, competitor: competitor, own: own, other: other, weighs: why == nil}
		s.Rows = append(s.Rows, bed.Row{Row: result.Row{Name: "other node " + r.String(), Command: run.command()}, Job: run})
	}
	return nil
}

func (s *site) weigh(ctx context.Context, node string, weight int) error {
	if err := s.lab.Set(ctx, node, "io."+entry+".weight", strconv.Itoa(weight)); err != nil {
		return err
	}
	return s.holds(ctx, node, "weight", int64(weight))
}

// foregroundRun is a row of the set foreground.
type foregroundRun struct {
	site             *site
	rate             vnode.Rate // of the competitor
	node, competitor string
	own, other       side.Arm
	weighs           bool
}

func (r *foregroundRun) command() []string {
	return []string{"/bin/sh", "-c", work, "/mnt/1/" + ownFile, strconv.FormatInt(loads(r.site.o)/request, 10), strconv.Itoa(loops(r.site.o))}
}

// Measure lets the foreground work once. The other node has begun before it, and is ended after it.
func (r *foregroundRun) Measure(ctx context.Context, a bed.Arm, run, warm time.Duration) (map[string]float64, error) {
	s := r.site
	if r.weighs {
		weight := usualWeight
		if a.Name == priorityArm {
			weight = highWeight
		}
		if err := s.weigh(ctx, r.node, weight); err != nil {
			return nil, err
		}
	}
	if err := s.allow(ctx, r.competitor, "read.rate", r.rate); err != nil {
		return nil, err
	}
	if err := forget(append(s.on(ownFile), s.on(otherFile)...)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, run+warm+10*time.Minute)
	defer cancel()
	end := func() (map[string]float64, error) { return map[string]float64{}, nil }
	if a.Name == besideArm || a.Name == priorityArm {
		end = r.compete(ctx, warm)
	}
	out, err := r.own(ctx, r.command())
	values, e := end()
	if err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	var load, compute float64
	if _, err := fmt.Fscan(bytes.NewReader(out), &load, &compute); err != nil {
		return nil, fmt.Errorf("read how long the foreground took: %w", err)
	}
	values["load_s"], values["compute_s"] = load/1e9, compute/1e9
	return values, nil
}

// compete lets the other node read until end is called, which returns what it read. It returns when that node is at work.
func (r *foregroundRun) compete(ctx context.Context, warm time.Duration) (end func() (map[string]float64, error)) {
	s := r.site
	fresh := s.forgetting(otherFile, float64(r.rate))
	j := fio.Job{Files: s.inNode(otherFile), Size: s.o.Size, Pattern: "read", Block: request, Run: time.Hour, Warm: warm}
	reading, cancel := context.WithCancel(ctx)
	var out []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		out, err = r.other(reading, j.Args())
	}()
	select {
	case <-done:
	case <-time.After(bed.Lead + warm):
	}
	return func() (map[string]float64, error) {
		early := false
		select {
		case <-done: // it is to read until it is ended
			early = true
		default:
		}
		cancel()
		<-done
		fresh()
		if early {
			return nil, fmt.Errorf("the other node ended before the foreground: %w", err)
		}
		got, err := fio.Read(out) // it prints what it did when it is ended
		if err != nil {
			return nil, fmt.Errorf("the other node: %w", err)
		}
		return map[string]float64{"others_bytes_per_second": got["bytes_per_second"]}, nil
	}
}
