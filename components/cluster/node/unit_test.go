package node

import "testing"

func TestUnitPath(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/local/bin/hyperkube":    `"/usr/local/bin/hyperkube"`,
		"/opt/my programs/hyperkube":  `"/opt/my programs/hyperkube"`,
		`/opt/100%/"a"\b/hyperkube`:   `"/opt/100%%/\"a\"\\b/hyperkube"`,
		"/home/u/it's here/hyperkube": `"/home/u/it's here/hyperkube"`,
	} {
		if got := unitPath(path); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
}
