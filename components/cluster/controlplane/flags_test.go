package controlplane

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"hyperkube/components/cluster/joindiscovery"
	"hyperkube/internal/base/version"
)

// TestSkipTokenPrint: with --skip-token-print the join command is printed without the token. The
// flag affects only the current run.
func TestSkipTokenPrint(t *testing.T) {
	m := newTestNode(t)
	token := joindiscovery.NewToken()
	for _, hide := range []bool{false, true} {
		var out bytes.Buffer
		m.settings.HideToken = hide
		if err := m.printNextSteps(&out, token); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), token.Key) == hide || strings.Contains(out.String(), "--token <value withheld> ") != hide {
			t.Errorf("hide %v:\n%s", hide, &out)
		}
	}
	if err := m.saveSettings(); err != nil {
		t.Fatal(err)
	}
	if s, err := new(initOptions).settings(m.layout, func(string) bool { return false }); err != nil || s.HideToken {
		t.Errorf("next run: %+v, %v", s, err)
	}
}

// TestPhaseSkipTokenPrint: the phase bootstrap-token hides the token as well.
func TestPhaseSkipTokenPrint(t *testing.T) {
	m := newTestNode(t)
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body) // apply requests return the object
	})
	for _, hide := range []bool{false, true} {
		var out bytes.Buffer
		token := joindiscovery.NewToken()
		m.settings.Token, m.settings.HideToken = token.String(), hide
		if err := m.setup().phaseToken(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), token.Key) == hide || strings.Contains(out.String(), "--token <value withheld> ") != hide {
			t.Errorf("hide %v:\n%s", hide, &out)
		}
	}
}

// TestRequestedVersion: another minor version of Kubernetes is refused, and the error names it.
func TestRequestedVersion(t *testing.T) {
	m := newTestNode(t)
	for requested, valid := range map[string]bool{"": true, "stable-1": true, version.Get().GitVersion: true, "v1.20.3": false} {
		_, err := (&initOptions{version: requested}).settings(m.layout, func(string) bool { return false })
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "--kubernetes-version: "+requested) {
			t.Errorf("%q: %v", requested, err)
		}
	}
}

// TestIgnoredChecks: errors of checks that are ignored by the flag or the file are printed like in
// kubeadm.
func TestIgnoredChecks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("preflight checks need root")
	}
	m := newTestNode(t)
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ flag, file []string }{{nil, nil}, {[]string{"Port-" + port}, nil}, {nil, []string{"all"}}} {
		var out bytes.Buffer
		err := ignoredChecks(c.flag).check(&out, m.layout, []int{listener.Addr().(*net.TCPAddr).Port}, c.file, "")
		ignoring := c.flag != nil || c.file != nil
		if (err == nil) != ignoring || strings.Contains(out.String(), "\t[WARNING Port-"+port+"]: port "+port+" is in use by") != ignoring {
			t.Errorf("%v, %v: %v\n%s", c.flag, c.file, err, &out)
		}
	}
	s, err := decodeInit([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {ignorePreflightErrors: [Swap, Mem]}\n"))
	if err != nil || len(s.Ignored) != 2 {
		t.Errorf("file of init: %+v, %v", s, err)
	}
	o := &joinOptions{ignored: ignoredChecks{"Swap"}}
	if err := o.decode([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {ignorePreflightErrors: [Mem]}\n")); err != nil || len(o.ignored) != 2 {
		t.Errorf("file of join: %v, %v", o.ignored, err)
	}
}
