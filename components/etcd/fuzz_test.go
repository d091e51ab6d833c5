package etcd

import "testing"

// FuzzConfigFile checks that no configuration file makes the parser panic, and that a file that is
// accepted gives a configuration.
func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("name: a\nquota-backend-bytes: 1\nclient-transport-security:\n  cert-file: c\n"))
	f.Add([]byte("peer-transport-security: []\n"))
	f.Add([]byte("snapshot-count: -1\nmetrics:\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := parseConfigFile("file", data)
		if (o == nil) == (err == nil) {
			t.Errorf("%v, %v", o, err)
		}
	})
}
