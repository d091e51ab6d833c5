package pki

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files are a certificate and its key in files that somebody renews. Its methods are safe
// for several goroutines.
type Files struct {
	// What begins errors: what could not be read, for whom.
	What              string
	CertFile, KeyFile string
	// Every is how often the time of CertFile is looked at, at most; zero: each time that
	// the certificate is asked for.
	Every time.Duration
	// Failed, unless nil, is told why files that have changed could not be read.
	Failed func(error)

	mu      sync.Mutex
	pair    *tls.Certificate
	changed time.Time // of CertFile, when pair was read
	looked  time.Time
}

// Certificate returns what is in the files, which are read again when CertFile has changed.
// As long as that fails, as between the writing of one file and the other, it is what was
// in them before; there is an error only when nothing could be read yet.
func (f *Files) Certificate() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.pair == nil || now.Sub(f.looked) >= f.Every {
		f.looked = now
		if err := f.read(); f.pair == nil {
			return nil, err
		} else if err != nil && f.Failed != nil {
			f.Failed(err)
		}
	}
	return f.pair, nil
}

func (f *Files) read() error {
	info, err := os.Stat(f.CertFile)
	if err != nil {
		return fmt.Errorf("%s: %w", f.What, err)
	}
	if f.pair != nil && info.ModTime().Equal(f.changed) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return fmt.Errorf("%s: %w", f.What, err)
	}
	f.pair, f.changed = &pair, info.ModTime()
	return nil
}
