package kubeconfig

import (
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
)

func TestSelection(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	if err := Write(file, Config{Name: "one", Server: "https://192.0.2.1:6443", Token: "t", Namespace: "shop"}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args      []string
		override  string
		namespace string
		fails     bool
	}{
		{nil, "", "shop", false},
		{[]string{"--context=one"}, "", "shop", false},
		{nil, "other", "other", false},
		{[]string{"--context=two"}, "", "", true},
	} {
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		s := Selection{Namespace: c.override}
		s.AddFlags(f)
		if err := f.Parse(append(c.args, "--kubeconfig="+file)); err != nil {
			t.Fatal(err)
		}
		cfg, namespace, err := s.Load("agent")
		if (err != nil) != c.fails {
			t.Errorf("%+v: error %v", s, err)
		}
		if err == nil && (namespace != c.namespace || cfg.Host != "https://192.0.2.1:6443" || cfg.BearerToken != "t" || cfg.UserAgent != "agent") {
			t.Errorf("%+v: namespace %q, configuration %v", s, namespace, cfg)
		}
	}
}
