// Package metrics serves metrics to Prometheus: what the nodes of this host use, whether their limits hold, and how the agent
// works.
package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"berth/internal/node"
	"berth/internal/node/protect"
	"berth/internal/site/listen"
	"berth/internal/site/store"
	"berth/internal/sys/version"
)

// Most is how many nodes have metrics of their own, if Sources does not say otherwise. Each label value costs a Prometheus
// memory.
const Most = 500

// Sources are the sources of the metrics.
type Sources struct {
	Nodes    *node.Berth
	Services *protect.Services
	Store    store.Store // nil: the host is in no site
	Most     int         // nodes with metrics of their own, the first ones by name; 0: [Most]
	Log      *slog.Logger
}

// Metrics are those of one agent.
type Metrics struct {
	registry *prometheus.Registry
	log      *slog.Logger
	requests *prometheus.CounterVec
	took     *prometheus.HistogramVec
}

// New returns the metrics of these sources. Nothing is read until they are asked for.
func New(s Sources) *Metrics {
	if s.Most == 0 {
		s.Most = Most
	}
	m := &Metrics{
		registry: prometheus.NewRegistry(), log: s.Log,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_api_requests_total", Help: "Requests that the agent answered."}, []string{"route", "code"}),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "berth_api_request_duration_seconds", Help: "How long answers took.", Buckets: []float64{.005, .025, .1, .5, 2, 10},
		}, []string{"route"}),
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_build_info", Help: "Which Berth this is.", ConstLabels: prometheus.Labels{"version": version.Berth}})
	build.Set(1)
	m.registry.MustRegister(build, m.requests, m.took, &collector{Sources: s}, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Handler answers scrapes, one at a time: metrics that could not be read are left out, and berth_collector_success says so.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 1, ErrorHandling: promhttp.ContinueOnError})
}

// Count counts the answers of a handler. Its label is the pattern of the handler's mux, of which there are few, never the
// path.
func (m *Metrics) Count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		seen := &watched{ResponseWriter: w, code: http.StatusOK}
		defer func() {
			route := r.Pattern
			if route == "" {
				route = "none"
			}
			m.requests.WithLabelValues(route, strconv.Itoa(seen.code)).Inc()
			m.took.WithLabelValues(route).Observe(time.Since(began).Seconds())
		}()
		h.ServeHTTP(seen, r)
	})
}

// watched notes the status of an answer.
type watched struct {
	http.ResponseWriter
	code int
}

func (w *watched) WriteHeader(code int) {
	w.code = code
	w.ResponseWriter.WriteHeader(code)
}

// Unwrap gives http.ResponseController what it needs for streams and for connections that are taken over.
func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// mostScrapers is how many connections are open at once; of one address a quarter of them, but where the address of the metrics is of the loopback.
const mostScrapers = 64

// listenAgain is the pause after an attempt to listen that failed.
const listenAgain = time.Second

// listen listens at an address, as soon as it can, and tries that every so often; the error is that of ctx.
func (m *Metrics) listen(ctx context.Context, address string, every time.Duration) (net.Listener, error) {
	said := ""
	for {
		l, err := listen.TCP(ctx, address)
		if err == nil {
			return l, nil
		}
		if said != err.Error() {
			said = err.Error()
			m.log.Warn("metrics are not served, and all else is: the agent's file names another address in metrics, or what listens there ends (ss -ltnp shows it)", "at", address, "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(every):
		}
	}
}

// Serve answers scrapes at an address over plain HTTP, and nothing else, until ctx ends. An address that is taken is waited for.
func (m *Metrics) Serve(ctx context.Context, address string) error {
	l, err := m.listen(ctx, address, listenAgain)
	if err != nil {
		return nil // ctx has ended
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", m.Handler())
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(listen.Bound(l, mostScrapers, mostScrapers/4)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
