package sink

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"hyperkube/components/logging/settings"
	"hyperkube/components/logging/store"
	"hyperkube/internal/serving/tlsdefaults"
)

// requestTimeout limits a request to a server.
const requestTimeout = 30 * time.Second

// protocol converts records to the body of a request, and interprets the response.
type protocol interface {
	// contentType is the media type of the body.
	contentType() string
	// encode writes the body for entries.
	encode(w io.Writer, entries []store.Entry) error
	// accepted interprets the body of a successful response to entries. It returns the number of entries that the server does not accept, and those
	// that must be sent again.
	accepted(body []byte, entries []store.Entry) (rejected int, again []store.Entry, err error)
}

// httpSender sends records by HTTP.
type httpSender struct {
	settings settings.Sink
	protocol protocol
	client   *http.Client
}

func newHTTP(s settings.Sink) (*httpSender, error) {
	h := &httpSender{settings: s}
	switch s.Type {
	case settings.OTLP:
		h.protocol = otlp{}
	case settings.Loki:
		h.protocol = loki{}
	case settings.Elasticsearch:
		h.protocol = newElasticsearch(s.Index)
	default:
		return nil, fmt.Errorf("type %q is unknown", s.Type)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, CipherSuites: tlsdefaults.CipherSuites()}
	if s.CAFile != "" {
		data, err := os.ReadFile(s.CAFile)
		if err != nil {
			return nil, fmt.Errorf("reading caFile: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(data) {
			return nil, fmt.Errorf("%s contains no certificate", s.CAFile)
		}
	}
	h.client = &http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConns: 1, IdleConnTimeout: time.Minute,
			TLSHandshakeTimeout: 10 * time.Second,
		},
		// A redirect would send credentials to another server.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return h, nil
}

func (h *httpSender) close() { h.client.CloseIdleConnections() }

// send implements sender.
func (h *httpSender) send(ctx context.Context, entries []store.Entry) (int, error) {
	total := 0
	for {
		body, err := h.post(ctx, entries)
		var refused *refusedError
		if errors.As(err, &refused) && len(entries) > 1 {
			// One invalid record must not discard the others.
			half := len(entries) / 2
			first, err := h.send(ctx, entries[:half])
			if err != nil {
				return 0, err
			}
			second, err := h.send(ctx, entries[half:])
			return total + first + second, err
		}
		if refused != nil {
			return total + 1, nil
		}
		if err != nil {
			return 0, err
		}
		rejected, again, err := h.protocol.accepted(body, entries)
		if err != nil {
			return 0, err
		}
		total += rejected
		if len(again) == 0 {
			return total, nil
		}
		if len(again) == len(entries) {
			return 0, &retryError{cause: errors.New("the server accepts no records now")}
		}
		entries = again
	}
}

// refusedError is a response with which the server refuses the content of the request permanently.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

// post sends one request and returns the body of the response.
func (h *httpSender) post(ctx context.Context, entries []store.Entry) ([]byte, error) {
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(h.protocol.encode(z, entries), z.Close()); err != nil {
		return nil, fmt.Errorf("encoding records: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.settings.URL, &buf)
	if err != nil {
		return nil, fmt.Errorf("creating request: %w", err)
	}
	req.Header.Set("Content-Type", h.protocol.contentType())
	req.Header.Set("Content-Encoding", "gzip")
	req.Header.Set("User-Agent", "hyperkube-logging")
	for name, value := range h.settings.Headers {
		req.Header.Set(name, value)
	}
	for name, file := range h.settings.HeaderFiles {
		value, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("reading header %s: %w", name, err)
		}
		req.Header.Set(name, strings.TrimSpace(string(value)))
	}
	resp, err := h.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("sending records: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return nil, fmt.Errorf("reading response: %w", err)
	}
	if resp.StatusCode/100 == 2 {
		return body, nil
	}
	text := fmt.Sprintf("server responded %s: %s", resp.Status, strings.TrimSpace(string(body[:min(len(body), 300)])))
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		return nil, &refusedError{text}
	}
	// All other errors can be fixed without changing the records: credentials, the URL, overload.
	return nil, &retryError{after: retryAfter(resp.Header.Get("Retry-After"), time.Now()), cause: errors.New(text)}
}

// retryAfter returns the delay in a header Retry-After, in seconds or as a date, or 0.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(value); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
