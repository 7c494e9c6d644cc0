package server

import (
	"encoding/pem"
	"io"
	"net/http"
	"time"

	"berth/internal/site/certs"
	"berth/internal/spec/roles"
	"berth/internal/sys/refuse"
)

// mostRequest is the most bytes of a request for a certificate.
const mostRequest = 16 << 10

// Renewal answers the request of a host's agent for a new certificate, with the authority on this host. The body is a certificate
// request, and the answer the certificate, both PEM. It is for hosts alone, over TLS, and signs the name and
// role with which they came.
func Renewal(authority *certs.Signer, keep Audit) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(patience))
		who, err := Identify(req)
		if err != nil {
			err = &statusError{http.StatusUnauthorized, err}
		}
		of := line(who, req, roles.CertRenew, who.Name)
		var made []byte
		if err == nil {
			made, err = renew(w, req, authority, who, func() error {
				err := keep.begins(of)
				of.Begun = err == nil
				return err
			})
		}
		if keep != nil {
			_ = keep(of, err)
		}
		awaitTaken(w, patience)
		if err != nil {
			write(w, problemOf(err))
			return
		}
		w.Header().Set("Content-Type", "application/pem-certificate-chain")
		_, _ = w.Write(made) // the client is gone
	})
}

func renew(w http.ResponseWriter, req *http.Request, authority *certs.Signer, who roles.Who, begins func() error) ([]byte, error) {
	if err := roles.Check(who, roles.CertRenew); err != nil {
		return nil, err
	}
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, refuse.Invalidf("a certificate is renewed over TLS, by who has it")
	}
	text, err := io.ReadAll(http.MaxBytesReader(w, req.Body, mostRequest))
	if err != nil {
		return nil, bodyError(err)
	}
	cert, err := authority.Renew(req.Context(), text, req.TLS.PeerCertificates[0], begins)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), nil
}
