// Command xrdread reads random ranges of a file from an XRootD server, and prints how long each took.
//
//	xrdread [-addr HOST:PORT] [-reads N] [-time T] [-block BYTES] [-seed N] [-skip N] FILE
//
// It prints one line of JSON: {"reads": N, "errors": N, "lat_us": [...]}, the latencies in the order in which the reads
// were due. It stands for clients on other machines: it draws the send times in advance, independent of the server, and
// measures each latency from the time at which the read was due. A client that waits for each answer would not see the
// queue that it causes (coordinated omission). The send times are independent and uniform: a Poisson process with a fixed
// count. A run reads no range twice, nor do runs with the same seed that skip the ranges of earlier runs. So no read is
// served from a cache that was dropped at the start.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.addr, "addr", "127.0.0.1:1094", "the server")
	flag.IntVar(&o.reads, "reads", 100, "how many reads")
	flag.DurationVar(&o.length, "time", 10*time.Second, "in what time")
	flag.Int64Var(&o.block, "block", 64<<10, "bytes of one read")
	flag.Uint64Var(&o.seed, "seed", 1, "of ranges and moments")
	flag.IntVar(&o.skip, "skip", 0, "so many ranges that an earlier run of this seed has read")
	flag.IntVar(&o.links, "connections", 32, "most reads under way")
	flag.Parse()
	if err := run(o, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "xrdread:", err)
		os.Exit(1)
	}
}

type options struct {
	addr               string
	reads, skip, links int
	length             time.Duration
	block              int64
	seed               uint64
}

// due is one read with the time at which to send it.
type due struct {
	i      int
	at     time.Time
	offset int64
}

// result is the printed JSON document.
type result struct {
	Reads  int     `json:"reads"`
	Errors int     `json:"errors"`
	Last   string  `json:"last_error,omitempty"`
	LatUS  []int64 `json:"lat_us"` // 0: the read failed
}

func run(o options, path string) error {
	conns := make([]*conn, o.links)
	size := int64(0)
	for i := range conns {
		c, err := dial(o.addr)
		if err != nil {
			return err
		}
		defer c.close()
		if size, err = c.open(path); err != nil {
			return err
		}
		conns[i] = c
	}
	ranges, moments, err := o.draw(int(size / o.block))
	if err != nil {
		return err
	}
	work := make(chan due, o.reads)
	var mu sync.Mutex
	var wg sync.WaitGroup
	got := result{LatUS: make([]int64, o.reads)}
	for _, c := range conns {
		wg.Go(func() {
			for d := range work {
				err := c.read(d.offset, int(o.block))
				took := time.Since(d.at)
				mu.Lock()
				if err != nil {
					got.Errors++
					got.Last = err.Error()
				} else {
					got.Reads++
					got.LatUS[d.i] = max(1, took.Microseconds())
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	start := time.Now()
	for i, after := range moments {
		at := start.Add(after)
		time.Sleep(time.Until(at))
		work <- due{i, at, int64(ranges[i]) * o.block}
	}
	close(work)
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(got)
}

// draw returns the ranges to read, and when to read each, measured from the start. The ranges follow one permutation of all
// ranges, given by the seed; the times also depend on skip.
func (o options) draw(all int) (ranges []int, moments []time.Duration, err error) {
	if o.reads < 1 || o.skip < 0 || o.skip+o.reads > all {
		return nil, nil, fmt.Errorf("a file of %d ranges has no %d to read after the first %d", all, o.reads, o.skip)
	}
	ranges = rand.New(rand.NewPCG(o.seed, 0)).Perm(all)[o.skip : o.skip+o.reads]
	random := rand.New(rand.NewPCG(o.seed, 1+uint64(o.skip)))
	for range o.reads {
		moments = append(moments, time.Duration(random.Float64()*float64(o.length)))
	}
	slices.Sort(moments)
	return ranges, moments, nil
}
