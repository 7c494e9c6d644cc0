// Command xrdread reads random ranges of a file from an XRootD server, and tells how long each took.
//
//	xrdread [-addr HOST:PORT] [-rate N] [-block BYTES] [-time T] [-seed N] FILE
//
// It prints one line of JSON: {"reads": N, "errors": N, "lat_us": [...]}. It stands for a client on another machine:
// reads are sent at a steady rate (Poisson), whatever the server does, and the time of each runs from the moment at
// which it was due. A client that waited for the answer before it asked again would not see the queue that it causes
// (coordinated omission). No range is read twice in a run, so none comes from a cache that was dropped before.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:1094", "the server")
	rate := flag.Float64("rate", 25, "reads a second")
	block := flag.Int64("block", 64<<10, "bytes of one read")
	length := flag.Duration("time", 10*time.Second, "how long")
	seed := flag.Uint64("seed", 1, "of ranges and moments")
	links := flag.Int("connections", 16, "most reads under way")
	flag.Parse()
	if err := run(*addr, flag.Arg(0), *rate, *block, *length, *seed, *links); err != nil {
		fmt.Fprintln(os.Stderr, "xrdread:", err)
		os.Exit(1)
	}
}

// due is one read that is to be sent at a moment.
type due struct {
	at     time.Time
	offset int64
}

func run(addr, path string, rate float64, block int64, length time.Duration, seed uint64, links int) error {
	conns := make([]*conn, links)
	size := int64(0)
	for i := range conns {
		c, err := dial(addr)
		if err != nil {
			return err
		}
		defer c.close()
		if size, err = c.open(path); err != nil {
			return err
		}
		conns[i] = c
	}
	random := rand.New(rand.NewPCG(seed, 0))
	order := random.Perm(int(size / block))
	work := make(chan due, len(order))
	var mu sync.Mutex
	var wg sync.WaitGroup
	result := struct {
		Reads  int       `json:"reads"`
		Errors int       `json:"errors"`
		Last   string    `json:"last_error,omitempty"`
		LatUS  []float64 `json:"lat_us"`
	}{}
	for _, c := range conns {
		wg.Go(func() {
			for d := range work {
				err := c.read(d.offset, int(block))
				took := time.Since(d.at)
				mu.Lock()
				if err != nil {
					result.Errors++
					result.Last = err.Error()
				} else {
					result.Reads++
					result.LatUS = append(result.LatUS, float64(took.Nanoseconds())/1e3)
				}
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	next := time.Now()
	end := next.Add(length)
	for _, i := range order {
		next = next.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		if next.After(end) {
			break
		}
		time.Sleep(time.Until(next))
		work <- due{next, int64(i) * block}
	}
	close(work)
	wg.Wait()
	return json.NewEncoder(os.Stdout).Encode(result)
}
