package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"berth/internal/sys/file"
)

// run is a run of a job: one that is queued again is submitted again. Its text is the name of the file with what it used.
type run struct{ job, submitted string }

func (r run) String() string { return r.job + "@" + r.submitted }

var runs = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\A([0-9_]+)@([0-9]{4}-[0-9T:-]{14})\z`) })

// hears is how long an epilog waits for the accounts to hear of a new job: slurmctld 22.05 tells of those each 5 s.
const hears = 20 * time.Second

var (
	errNotYet = errors.New("the accounts have not heard of this run yet")
	errAgain  = errors.New("the job was queued again since, and sacctmgr changes its last run alone")
)

// account writes the resource use of a run into the accounts. If slurmdbd is away, or has not heard of the run yet, this is left in a file
// beside slurmctld's state, which each controller of the cluster sees; the epilog of a later job sends it.
func (p *Power) account(ctx context.Context, r run, used string) error {
	config, err := p.slurm.Config(ctx)
	if err != nil || config["AccountingStorageType"] != "accounting_storage/slurmdbd" {
		return err
	}
	dir := filepath.Join(config["StateSaveLocation"], "berth-accounts")
	err = p.send(ctx, r, used)
	for errors.Is(err, errNotYet) && ctx.Err() == nil {
		select {
		case <-time.After(time.Second):
			err = p.send(ctx, r, used)
		case <-ctx.Done():
		}
	}
	if err != nil {
		p.Log.Error("what a job used waits for the accounts", "job", r.job, "folder", dir, "error", err.Error())
		if !runs().MatchString(r.String()) {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("keep what a job used: %w", err)
		}
		return file.Write(filepath.Join(dir, r.String()), []byte(used), 0o600)
	}
	return p.resend(ctx, dir)
}

// send writes the resource use of a run into its record in the accounts.
func (p *Power) send(ctx context.Context, r run, used string) error {
	last, err := p.slurm.Accounted(ctx, r.job)
	switch {
	case err != nil:
		return err
	case last < r.submitted:
		return errNotYet
	case last > r.submitted:
		return errAgain
	}
	return p.slurm.Account(ctx, r.job, used)
}

const (
	mostResent = 50                  // by one epilog
	longestTry = 30 * 24 * time.Hour // then no process waits for it any more
)

// resend sends the files that are left of earlier jobs.
func (p *Power) resend(ctx context.Context, dir string) error {
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read what waits for the accounts: %w", err)
	}
	for _, one := range all[:min(len(all), mostResent)] {
		info, err := one.Info()
		m := runs().FindStringSubmatch(one.Name())
		if err != nil || m == nil { // another epilog has sent it, or writes it
			continue
		}
		path := filepath.Join(dir, one.Name())
		used := file.Text(path)
		if used == "" {
			continue
		}
		err = p.send(ctx, run{m[1], m[2]}, used)
		p.Log.Info("sent later", "job", m[1], "submitted", m[2], "error", text(err))
		if err == nil || errors.Is(err, errAgain) || time.Since(info.ModTime()) > longestTry {
			_ = os.Remove(path)
		}
	}
	return nil
}
