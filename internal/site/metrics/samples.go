package metrics

import (
	"math"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth/internal/host/counters"
	"berth/internal/node"
	"berth/internal/spec/vnode"
	"berth/internal/sys/proof"
)

// told collects the metrics of one scrape.
type told struct{ to chan<- prometheus.Metric }

func (t told) gauge(d *prometheus.Desc, v float64, labels ...string) {
	t.to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (t told) counter(d *prometheus.Desc, v float64, labels ...string) {
	t.to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

// known leaves out what this host does not count.
func (t told) known(d *prometheus.Desc, kind prometheus.ValueType, n int64, labels ...string) {
	if n != counters.Unknown {
		t.to <- prometheus.MustNewConstMetric(d, kind, float64(n), labels...)
	}
}

func (t told) seconds(d *prometheus.Desc, v time.Duration, labels ...string) {
	if v != counters.Unknown {
		t.counter(d, v.Seconds(), labels...)
	}
}

// life sends when a node was started, and how often.
func (t told) life(s *node.Status) {
	if !s.Started.IsZero() {
		t.gauge(began, float64(s.Started.UnixMilli())/1000, s.Name)
	}
	t.counter(restarts, float64(s.Restarts), s.Name)
}

// dead reports whether a node has ended with a failure and is not started again, or its restart fails.
func dead(s *node.Status) bool {
	return s.State == node.Exited && s.Exit != nil && s.Exit.Failed() && !s.Restarting || s.Refused != nil
}

// limits sends the limits that were asked for and those that the kernel has. A limit that is no number has only whether it
// holds.
func (t told) limits(node string, all []proof.Limit) {
	done := map[string]bool{} // a key is there once for each mechanism
	for _, l := range all {
		if done[l.Key] {
			continue
		}
		done[l.Key] = true
		if v, ok := number(l.Asked); ok {
			t.gauge(asked, v, node, l.Key)
		}
		if v, ok := number(l.ReadBack); ok {
			t.gauge(achieved, v, node, l.Key)
		}
		if l.Applies() {
			t.gauge(holds, truth(l.Holds), node, l.Key)
		}
	}
}

// number is the value of a limit as people write it: 0.5, 256MiB, 25MB/s, 100Mbit/s, max.
func number(text string) (float64, bool) {
	if text == "max" {
		return math.Inf(1), true
	}
	if v, err := strconv.ParseFloat(text, 64); err == nil && !math.IsNaN(v) {
		return v, true
	}
	if v, err := vnode.ParseBytes(text); err == nil {
		return float64(v), true
	}
	if v, err := vnode.ParseRate(text); err == nil {
		return float64(v), true
	}
	if v, err := vnode.ParseBitRate(text); err == nil {
		return float64(v), true
	}
	return 0, false
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
