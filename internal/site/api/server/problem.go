package server

import (
	"context"
	"errors"
	"net/http"

	"berth/internal/runner"
	"berth/internal/site/api"
	"berth/internal/spec"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// statusError is an error with a status of its own.
type statusError struct {
	status int
	error
}

func (e *statusError) Unwrap() error { return e.error }

// statusOf says which status an error is.
func statusOf(err error) int {
	if own, ok := errors.AsType[*statusError](err); ok {
		return own.status
	}
	if _, ok := errors.AsType[*runner.CommandError](err); ok { // the node's command cannot run
		return http.StatusUnprocessableEntity
	}
	if _, ok := errors.AsType[*roles.Denied](err); ok {
		return http.StatusForbidden
	}
	switch refuse.KindOf(err) {
	case refuse.Invalid:
		return http.StatusBadRequest
	case refuse.Cannot:
		return http.StatusUnprocessableEntity
	case refuse.NotFound:
		return http.StatusNotFound
	case refuse.Busy, refuse.Differs:
		return http.StatusConflict
	case refuse.Failed:
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// problem makes a problem that needs no error.
func problem(status int, detail string) api.Problem {
	return api.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail, Code: int(refuse.Invalid)}
}

// problemOf makes a problem of an error.
func problemOf(err error) api.Problem {
	p := problem(statusOf(err), err.Error())
	p.Code = int(refuse.KindOf(err))
	if r, ok := errors.AsType[*refuse.Error](err); ok && r.Remedy != "" && r.Error() == err.Error() {
		p.Detail, p.Remedy = r.What, r.Remedy
	}
	if failed, ok := errors.AsType[*runner.CommandError](err); ok {
		p.Code = failed.Code
	}
	if found, ok := errors.AsType[spec.Problems](err); ok && len(found) > 0 {
		p.Field, p.Line = found[0].Field, found[0].Line
		for _, m := range found {
			p.Mistakes = append(p.Mistakes, api.Mistake{Line: m.Line, Column: m.Column, Field: m.Field, Message: m.Msg})
		}
	}
	return p
}

func write(w http.ResponseWriter, p api.Problem) { writeJSON(w, p.Status, api.ProblemType, p) }
