package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"berth/internal/sys/refuse"
)

// goesOn ends a message about a pull that can be repeated.
const goesOn = "what was fetched is kept: the same command goes on from there"

// failure says in a sentence why a pull failed. A refusal stays as it is.
func (p *puller) failure(err error) error {
	host := p.ref.Context().RegistryStr()
	if r, ok := errors.AsType[*refuse.Error](err); ok {
		return r
	}
	failed := func(remedy, format string, a ...any) error {
		return &refuse.Error{Kind: refuse.Failed, What: fmt.Sprintf(format, a...), Remedy: remedy, Err: err}
	}
	if c, ok := errors.AsType[*cut](err); ok {
		return failed(goesOn, "%s ended a blob of %s after %d of %d bytes: %s", host, p.ref, c.have, c.size, clean(c.Error()))
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return failed("put the certificate of its authority into /etc/containers/certs.d/"+host+"/ca.crt, or do without with --tls-verify=false",
			"the certificate of %s is not trusted: %s", host, clean(bad.Err.Error()))
	}
	if answer, ok := errors.AsType[*transport.Error](err); ok {
		return p.answered(answer)
	}
	if a, ok := errors.AsType[*another](err); ok {
		return failed("tell who runs the registry if it happens again", "%s cannot give %s: %s", host, p.ref, a)
	}
	if _, ok := errors.AsType[*fs.PathError](err); ok { // a file of ours
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return failed(goesOn, "the pull of %s was stopped", p.ref)
	case errors.Is(err, http.ErrSchemeMismatch):
		return failed("--tls-verify=false allows that", "%s speaks plain HTTP, without TLS", host)
	}
	again := ""
	if len(p.blobs) > 0 {
		again = goesOn
	}
	return failed(again, "%s cannot be reached: %s", host, clean(err.Error()))
}

// answered explains a registry's refusal to the user.
func (p *puller) answered(e *transport.Error) error {
	host, said := p.ref.Context().RegistryStr(), clean(e.Error())
	out := &refuse.Error{Kind: refuse.Failed, Err: e}
	switch e.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		out.What = fmt.Sprintf("%s does not give %s to this login, or there is no such image: %s", host, p.ref, said)
		out.Remedy = "podman login " + host + " (or docker login) as root"
	case http.StatusNotFound:
		out.Kind, out.What = refuse.NotFound, fmt.Sprintf("%s has no %s: %s", host, p.ref, said)
	case http.StatusTooManyRequests:
		out.What, out.Remedy = fmt.Sprintf("%s takes no more requests for now: %s", host, said), "try later; "+goesOn
	default:
		out.What, out.Remedy = fmt.Sprintf("%s failed: %s", host, said), goesOn
	}
	return out
}

// damaged is the error for content with another digest than its name.
func (p *puller) damaged(what string, is v1.Hash) error {
	return &refuse.Error{
		Kind: refuse.Failed, What: fmt.Sprintf("%s is damaged in the registry, or on the way: its digest is %s", what, is),
		Remedy: "nothing of it is kept; tell who runs the registry if it happens again",
	}
}
