package compose_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hyperkube/internal/tokens"
)

// TestTokenTracking looks for the ConfigMap, and that it is mended.
func TestTokenTracking(t *testing.T) {
	admin, err := start(t).server.Clients("test", "admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	api := admin.Kube.CoreV1().ConfigMaps("kube-system")
	good := func() bool {
		cm, err := api.Get(t.Context(), tokens.TrackingName, metav1.GetOptions{})
		if err != nil {
			return false
		}
		_, err = time.Parse(tokens.Day, cm.Data[tokens.TrackingKey])
		return err == nil
	}
	wait := func(what string) {
		for end := time.Now().Add(time.Minute); !good(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not " + what)
			}
		}
	}
	wait("written")
	cm, err := api.Get(t.Context(), tokens.TrackingName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data[tokens.TrackingKey] = "yesterday"
	if _, err := api.Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait("mended")
}
