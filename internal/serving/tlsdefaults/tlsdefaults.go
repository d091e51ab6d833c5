// Package tlsdefaults contains the TLS settings that all servers of the project use unless an option
// specifies others.
package tlsdefaults

import "crypto/tls"

// CipherSuites returns the cipher suites for TLS 1.2: those with forward secrecy and authenticated
// encryption (AEAD). Go's default also contains suites in CBC mode, which the CIS Kubernetes Benchmark
// excludes. The cipher suites of TLS 1.3 cannot be configured and are all of this kind. The caller
// owns the slice.
func CipherSuites() []uint16 {
	return []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	}
}
