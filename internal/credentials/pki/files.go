package pki

import (
	"crypto/tls"
	"fmt"
	"os"
	"sync"
	"time"
)

// Files is a certificate and key in files that another process or component renews, such as a
// kubelet's serving certificate. Its methods are safe for concurrent use.
type Files struct {
	// Context is the prefix of errors, such as "reading serving certificate".
	Context           string
	CertFile, KeyFile string
	// CheckInterval is the minimum interval between checks of the modification time of CertFile. Zero means
	// that each call of Certificate checks it.
	CheckInterval time.Duration
	// OnError is called with the error when changed files cannot be loaded. It may be nil.
	OnError func(error)

	mu        sync.Mutex
	pair      *tls.Certificate
	changed   time.Time // modification time of CertFile when pair was loaded
	checkedAt time.Time
}

// Certificate returns the certificate in the files. It loads the files again when the modification time of CertFile
// has changed, which it checks at most once per CheckInterval. If that fails, for example because only one of the
// files was replaced yet, it calls OnError and returns the previous certificate; it tries again at the next check. It
// returns an error only if no certificate was ever loaded.
func (f *Files) Certificate() (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); f.pair == nil || now.Sub(f.checkedAt) >= f.CheckInterval {
		f.checkedAt = now
		if err := f.read(); f.pair == nil {
			return nil, err
		} else if err != nil && f.OnError != nil {
			f.OnError(err)
		}
	}
	return f.pair, nil
}

// read loads the files, unless the modification time of CertFile is that of the loaded certificate. On an error, the
// loaded certificate stays.
func (f *Files) read() error {
	info, err := os.Stat(f.CertFile)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Context, err)
	}
	if f.pair != nil && info.ModTime().Equal(f.changed) {
		return nil
	}
	pair, err := tls.LoadX509KeyPair(f.CertFile, f.KeyFile)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Context, err)
	}
	f.pair, f.changed = &pair, info.ModTime()
	return nil
}
