package aggregation

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
)

// ClientCert returns a function that returns the certificate of two files,
// which it reads again when they have changed. The first read is made now.
func ClientCert(certFile, keyFile string) (func() (*tls.Certificate, error), error) {
	if certFile == "" || keyFile == "" {
		return nil, errors.New("the front proxy's client certificate takes a certificate and a key")
	}
	var mu sync.Mutex // guards what follows
	var cert *tls.Certificate
	var read time.Time
	get := func() (*tls.Certificate, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(certFile)
		if err == nil && cert != nil && info.ModTime().Equal(read) {
			return cert, nil
		}
		var pair tls.Certificate
		if err == nil {
			pair, err = tls.LoadX509KeyPair(certFile, keyFile)
		}
		if err != nil {
			if cert != nil {
				return cert, nil // it is being replaced
			}
			return nil, fmt.Errorf("reading the front proxy's client certificate: %w", err)
		}
		cert, read = &pair, info.ModTime()
		return cert, nil
	}
	_, err := get()
	return get, err
}
