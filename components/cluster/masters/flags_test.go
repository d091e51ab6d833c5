package masters

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"hyperkube/components/cluster/trust"
	"hyperkube/internal/version"
)

// TestSkipTokenPrint: the command to join with is printed without the token where that is
// not to be seen, at this run alone.
func TestSkipTokenPrint(t *testing.T) {
	m := testMaster(t)
	token := trust.NewToken()
	for _, hide := range []bool{false, true} {
		var out bytes.Buffer
		m.settings.HideToken = hide
		if err := m.tell(&out, token); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), token.Key) == hide || strings.Contains(out.String(), "--token <value withheld> ") != hide {
			t.Errorf("hidden %v:\n%s", hide, &out)
		}
	}
	if err := m.keepSettings(); err != nil {
		t.Fatal(err)
	}
	if s, err := new(initOptions).settings(m.layout, func(string) bool { return false }); err != nil || s.HideToken {
		t.Errorf("at the next run: %+v, %v", s, err)
	}
}

// TestPhaseHidesToken: so does the phase that makes the token alone.
func TestPhaseHidesToken(t *testing.T) {
	m := testMaster(t)
	serveAs(t, m, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.Copy(w, r.Body) // what is applied is there
	})
	for _, hide := range []bool{false, true} {
		var out bytes.Buffer
		token := trust.NewToken()
		m.settings.Token, m.settings.HideToken = token.String(), hide
		if err := m.phaseToken(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), token.Key) == hide || strings.Contains(out.String(), "--token <value withheld> ") != hide {
			t.Errorf("hidden %v:\n%s", hide, &out)
		}
	}
}

// TestWishedVersion: a version of another minor is refused by name.
func TestWishedVersion(t *testing.T) {
	m := testMaster(t)
	for wish, fine := range map[string]bool{"": true, "stable-1": true, version.Get().GitVersion: true, "v1.20.3": false} {
		_, err := (&initOptions{version: wish}).settings(m.layout, func(string) bool { return false })
		if (err == nil) != fine || err != nil && !strings.Contains(err.Error(), "--kubernetes-version: "+wish) {
			t.Errorf("%q: %v", wish, err)
		}
	}
}

// TestIgnoredChecks: what the flag or the file says may be wrong is told as kubeadm tells it.
func TestIgnoredChecks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("others than root may not begin")
	}
	m := testMaster(t)
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
		err := ignored(c.flag).check(&out, m.layout, []int{listener.Addr().(*net.TCPAddr).Port}, c.file)
		fine := c.flag != nil || c.file != nil
		if (err == nil) != fine || strings.Contains(out.String(), "\t[WARNING Port-"+port+"]: port "+port+" is taken by") != fine {
			t.Errorf("%v, %v: %v\n%s", c.flag, c.file, err, &out)
		}
	}
	s, err := decodeInit([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {ignorePreflightErrors: [Swap, Mem]}\n"))
	if err != nil || len(s.Ignored) != 2 {
		t.Errorf("by a file: %+v, %v", s, err)
	}
	o := &joinOptions{ignored: ignored{"Swap"}}
	if err := o.decode([]byte("apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration: {ignorePreflightErrors: [Mem]}\n")); err != nil || len(o.ignored) != 2 {
		t.Errorf("by a file of join: %v, %v", o.ignored, err)
	}
}
