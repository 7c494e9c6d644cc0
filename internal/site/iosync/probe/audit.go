package probe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Audit counts for some time, or until ctx ends, and returns the result. dir is the folder that berthd publishes for the file
// system; the disk is the one whose limits hold the nodes.
func Audit(ctx context.Context, dir string, major, minor uint32, during time.Duration) (r Result, err error) {
	f := Folder{Dir: dir}
	if err := f.Look(); err != nil {
		return Result{}, err
	}
	p, err := Open(major, minor)
	if err != nil {
		return Result{}, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	begin := time.Now()
	over, stop := context.WithTimeout(ctx, during)
	defer stop()
	again := time.NewTicker(time.Second) // nodes that start and end meanwhile
	defer again.Stop()
	for over.Err() == nil {
		select {
		case <-over.Done():
		case <-again.C:
		}
		if err := f.Look(); err != nil {
			return Result{}, err
		}
	}
	counts, err := p.Read()
	if err != nil {
		return Result{}, err
	}
	r = f.Result(counts, p.Ways())
	r.Seconds = time.Since(begin).Round(time.Millisecond).Seconds()
	r.Disk = fmt.Sprintf("%d:%d", major, minor)
	r.Server, err = os.Hostname()
	return r, err
}
