package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"berth/internal/site/api/server"
	"berth/internal/site/certs"
	"berth/internal/site/iosync/allot"
	"berth/internal/site/iosync/want"
	"berth/internal/site/store"
	"berth/internal/spec/vnode"
	"berth/internal/sys/refuse"
)

// reportPath is where the host that has the office takes the reports of file servers.
const reportPath = "/v1/sync/report"

// soon bounds a report: another one follows. A host whose kernel does not answer by dialed is not reached now; the next report tries again,
// so that it finds the way soon after it is back.
const (
	soon   = 2 * time.Second
	dialed = 500 * time.Millisecond
)

// allocatorKey names the host that splits the allowances of nodes. It goes with the host's session, and the first one to see that takes
// the office.
var allocatorKey = store.Key(store.Offices, "allocator")

// Office is the value of a key below store.Offices.
type Office struct {
	Host string `json:"host"`
}

// office is this host's part in splitting allowances.
type office struct {
	mu        sync.Mutex
	allocator *allot.Allocator         // nil: another host has the office
	lost      <-chan struct{}          // closed with the session
	demands   map[string]*allot.Demand // by file system
	changes   int                      // of the site: a demand that was made from an older view is not kept
	client    *http.Client             // of the host that has it
	of        string                   // its address
}

// seekOffice makes this host the allocator of the site when no other host is, until ctx ends. Only hosts that serve file
// systems do.
func (a *Agent) seekOffice(ctx context.Context) error {
	if len(a.conf.Filesystems) == 0 {
		return nil
	}
	woken := make(chan struct{}, 1)
	a.view.Follow(func(c store.Change) {
		if c.Key == allocatorKey {
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	})
	if err := a.view.whole(ctx, store.Offices, store.Filesystems, store.IO, store.Members); err != nil {
		return err
	}
	said := ""
	for {
		again := (<-chan time.Time)(nil)
		revision := a.view.revision(store.Offices, "allocator")
		has, _ := get[Office](a.view, store.Offices, "allocator")
		if has.Host == "" || has.Host == a.conf.Host && !a.inOffice() { // an earlier agent of this host had it, whose session still lives
			if err := a.takeOffice(ctx, revision); err != nil {
				again = time.After(retry)
				if said != err.Error() && !errors.Is(err, store.ErrNoSession) && !errors.Is(err, store.ErrAway) { // of which others tell
					said = err.Error()
					a.log.Warn("this host cannot take the office of the allocator; it tries again", "err", err)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-woken:
		case <-again:
		}
	}
}

// takeOffice writes that this host is the allocator, in place of the entry of a revision.
func (a *Agent) takeOffice(ctx context.Context, revision int64) error {
	lost := a.store.Done()
	text, err := json.Marshal(Office{a.conf.Host})
	if err != nil {
		return err
	}
	_, err = a.store.Commit(ctx, []store.Guard{{Key: allocatorKey, Revision: revision}}, []store.Op{{Key: allocatorKey, Value: text, Lease: true}})
	if _, another := errors.AsType[*store.Conflict](err); another {
		return nil // the view will say which host it is
	}
	if err != nil {
		return err
	}
	a.office.mu.Lock()
	defer a.office.mu.Unlock()
	now := time.Now()
	a.office.allocator, a.office.lost, a.office.demands = allot.New(fmt.Sprintf("%s-%d", a.conf.Host, now.UnixNano()), now), lost, map[string]*allot.Demand{}
	a.log.Info("this host splits the allowances of nodes over the file servers of the site")
	return nil
}

// inOffice reports whether this host has the office. The caller does not hold the lock.
func (a *Agent) inOffice() bool {
	a.office.mu.Lock()
	defer a.office.mu.Unlock()
	if a.office.allocator == nil {
		return false
	}
	select {
	case <-a.office.lost:
		a.office.allocator = nil
		a.log.Warn("this host lost its session, and with it the office of the allocator")
		return false
	default:
		return true
	}
}

// report takes a report of a file server, if this host has the office.
func (a *Agent) report(r allot.Report) (allot.Order, error) {
	if has, ok := get[Office](a.view, store.Offices, "allocator"); !a.inOffice() || ok && has.Host != a.conf.Host {
		return allot.Order{}, refuse.Busyf("host %s does not split allowances: another host of the site has that office", a.conf.Host)
	}
	demand := a.demand(r.Filesystem)
	a.office.mu.Lock()
	allocator := a.office.allocator
	a.office.mu.Unlock()
	if allocator == nil {
		return allot.Order{}, refuse.Busyf("host %s has just lost the office of the allocator", a.conf.Host)
	}
	return allocator.Take(r, demand, time.Now()), nil
}

// demand returns the limits that the site asks for on a file system now. They are computed again when the view of the site has
// changed.
func (a *Agent) demand(filesystem string) *allot.Demand {
	a.office.mu.Lock()
	d, changes := a.office.demands[filesystem], a.office.changes
	a.office.mu.Unlock()
	if d != nil {
		return d
	}
	d = &allot.Demand{}
	each(a.view, store.Filesystems, func(below []string, s want.Server) {
		if len(below) == 2 && below[1] == filesystem {
			d.Servers = append(d.Servers, below[0])
			if d.Capacity == nil {
				d.Capacity = map[string]allot.Rates{}
			}
			d.Capacity[below[0]] = rates(s.Capacity.Read, s.Capacity.Write)
		}
	})
	slices.Sort(d.Servers)
	each(a.view, store.IO, func(below []string, n want.Node) {
		e, ok := n.On(filesystem)
		if !ok || e.PerServer || len(below) != 2 {
			return
		}
		d.Nodes = append(d.Nodes, allot.Want{
			Node: below[1], Rates: rates(e.Read, e.Write), Weight: float64(cmp.Or(e.Weight, want.Normal)), Class: n.Class.Rank(),
		})
	})
	slices.SortFunc(d.Nodes, func(x, y allot.Want) int { return cmp.Compare(x.Node, y.Node) })
	a.office.mu.Lock()
	defer a.office.mu.Unlock()
	if a.office.demands != nil && a.office.changes == changes && len(d.Servers) > 0 {
		a.office.demands[filesystem] = d
	}
	return d
}

func rates(read, write vnode.IORate) (r allot.Rates) {
	r[allot.ReadBytes], r[allot.ReadOps] = float64(read.Rate), float64(read.IOPS)
	r[allot.WriteBytes], r[allot.WriteOps] = float64(write.Rate), float64(write.IOPS)
	return r
}

// forgetDemands makes demands anew: the site changed.
func (a *Agent) forgetDemands() {
	a.office.mu.Lock()
	defer a.office.mu.Unlock()
	clear(a.office.demands)
	a.office.changes++
}

// ask reports to the host that has the office.
func (a *Agent) ask(ctx context.Context, r allot.Report) (o allot.Order, err error) {
	has, ok := get[Office](a.view, store.Offices, "allocator")
	if !ok {
		return o, refuse.Cannotf("one of them takes it when the cluster state answers", "no host of the site splits allowances")
	}
	if has.Host == a.conf.Host {
		return a.report(r)
	}
	at, ok := get[Member](a.view, store.Members, has.Host)
	if !ok {
		return o, refuse.NotFoundf("host %s splits allowances, and is no host of the site", has.Host)
	}
	client, err := a.officeClient(at.Address)
	if err != nil {
		return o, err
	}
	text, err := json.Marshal(r)
	if err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, soon)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+at.Address+reportPath, bytes.NewReader(text))
	if err != nil {
		return o, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return o, certs.Explain(at.Address, err)
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(io.LimitReader(answer.Body, longestOrder))
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s says: %s", at.Address, bytes.TrimSpace(text))
	}
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	return o, err
}

// longestOrder is the most bytes of an order.
const longestOrder = 32 << 20

// officeClient is a client of the host that has the office, over TLS; its connection stays. This host's certificate is read when the
// connection is made: it changes when it is renewed.
func (a *Agent) officeClient(address string) (*http.Client, error) {
	a.office.mu.Lock()
	defer a.office.mu.Unlock()
	if a.office.of == address {
		return a.office.client, nil
	}
	if a.office.client != nil {
		a.office.client.CloseIdleConnections()
	}
	config, err := certs.Client(a.conf.Certs, address)
	if err != nil {
		return nil, err
	}
	a.office.of = address
	a.office.client = &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, DialContext: (&net.Dialer{Timeout: dialed}).DialContext, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
	}}
	return a.office.client, nil
}

// reports is the part of the API that the office needs.
func (a *Agent) reports() http.Handler { return server.Reports(a.report) }
