package layout

import "testing"

func TestKubeletAlias(t *testing.T) {
	for _, tc := range []struct {
		node             Node
		known, where, by string
	}{
		{Default(), "/var/lib/kubelet/plugins/d", "/var/lib/kubelet/plugins/d", "/var/lib/kubelet/plugins/d"},
		{Default().Numbered(1), "/var/lib/kubelet/plugins/d", "/var/lib/hyperkube/nodes/1/kubelet/plugins/d", "/var/lib/kubelet/plugins/d"},
		{Default().Numbered(1), "/var/lib/kubelet/", "/var/lib/hyperkube/nodes/1/kubelet", "/var/lib/kubelet"},
		{Default().Numbered(1), "/var/lib/kubelets", "/var/lib/kubelets", "/var/lib/kubelets"},
		{Default().Numbered(1), "/var/lib/kubelet/../x", "/var/lib/kubelet/../x", "/var/lib/kubelet/../x"},
		{Default().Numbered(1), "", "", ""},
		{Under("/r"), "/var/lib/kubelet/pods", "/r/var/lib/kubelet/pods", "/var/lib/kubelet/pods"},
		{Under("/r").Numbered(2), "/var/lib/kubelet/pods", "/r/var/lib/hyperkube/nodes/2/kubelet/pods", "/var/lib/kubelet/pods"},
	} {
		a := tc.node.KubeletAlias()
		where := a.ToActual(tc.known)
		if where != tc.where || a.ToAdvertised(where) != tc.by {
			t.Errorf("%s: actual path %s, advertised path %s, want %s and %s", tc.known, where, a.ToAdvertised(where), tc.where, tc.by)
		}
	}
}
