package server

import (
	"encoding/json"
	"net/http"
	"time"

	"berth/internal/site/iosync/allot"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// mostReport is the most bytes of a report of a file server: some 200 bytes for each of its nodes.
const mostReport = 32 << 20

// Reports answers what file servers report to the allocator of the site. They come over TLS, each with the certificate of its host.
func Reports(take func(allot.Report) (allot.Order, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
		who, err := Identify(req)
		if err != nil {
			err = &statusError{http.StatusUnauthorized, err}
		} else {
			err = roles.Check(who, roles.SyncReport)
		}
		var r allot.Report
		if err == nil {
			if err = json.NewDecoder(http.MaxBytesReader(w, req.Body, mostReport)).Decode(&r); err != nil {
				err = bodyError(err)
			}
		}
		if err == nil && r.Host != who.Name {
			err = &statusError{http.StatusForbidden, refuse.Invalidf("host %s reports for %q: each host reports of itself", who.Name, r.Host)}
		}
		var o allot.Order
		if err == nil {
			o, err = take(r)
		}
		awaitTaken(w, patience)
		if err != nil {
			write(w, problemOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o) // the client is gone
	})
}
