package sriov

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/sys/mac"
)

// TestInsist sets an adapter that declines, or accepts without effect, for a while or for good.
func TestInsist(t *testing.T) {
	wanted := Admin{MAC: mac.Must("02:00:00:00:00:01"), SpoofChk: true}
	for _, tt := range []struct {
		name   string
		writes []error // results of the first writes; the later ones succeed
		silent int     // number of accepted writes without effect
		want   string  // part of the error message
		most   time.Duration
	}{
		{name: "at once"},
		{name: "busy, then not", writes: []error{unix.EBUSY, unix.EAGAIN, unix.ETIMEDOUT}, most: setTime},
		{name: "needs more than three", silent: 4, most: setTime},
		{name: "busy for good", writes: repeat(unix.EBUSY, 100), want: "tried for 3s: MAC 02:00:00:00:00:01: " + unix.EBUSY.Error(), most: 2 * setTime},
		{name: "never does it", silent: 100, want: "asked for MAC 02:00:00:00:00:01, vlan 0, spoof check true, trust false, the adapter has MAC , vlan 0", most: 2 * setTime},
		{name: "cannot", writes: repeat(unix.EINVAL, 1), want: unix.EINVAL.Error()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var now Admin
				var tries int
				began := time.Now()
				err := wanted.insist(
					func() (Admin, error) { return now, nil },
					func(Admin) error {
						if tries++; tries <= len(tt.writes) {
							return fmt.Errorf("MAC %s: %w", wanted.MAC, tt.writes[tries-1])
						}
						if tries > len(tt.writes)+tt.silent {
							now = wanted
						}
						return nil
					})
				if tt.want == "" && (err != nil || now != wanted) {
					t.Errorf("after %d tries: %+v, %v", tries, now, err)
				}
				if tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
					t.Errorf("got  %v\nwant %s", err, tt.want)
				}
				if took := time.Since(began); took > tt.most {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
	gone := errors.New("gone")
	if err := wanted.insist(func() (Admin, error) { return Admin{}, gone }, nil); !errors.Is(err, gone) {
		t.Errorf("an adapter that is gone: %v", err)
	}
}

func repeat(err error, n int) []error {
	all := make([]error, n)
	for i := range all {
		all[i] = err
	}
	return all
}
