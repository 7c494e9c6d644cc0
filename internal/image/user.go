package image

import (
	"errors"
	"io"
	"io/fs"

	"berth/internal/image/users"
)

// FindUser returns the user of an image whose name or number is who, as users.Find does. If who is "", it returns the user
// that the image names for its command, or root. upper is the folder with the node's own writes, which overlay shows above
// the image; "" or a missing folder means none. With image host the files are the host's.
func FindUser(img Image, upper string, has users.Has, who string) (users.User, error) {
	if who == "" {
		who = img.Config.User
	}
	if who == "" {
		return users.User{}, checkPacked(img)
	}
	if img.Plain {
		return users.Find(users.In("/"), has, who)
	}
	t, err := openImage(img, upper)
	if errors.Is(err, fs.ErrNotExist) && upper != "" {
		return FindUser(img, "", has, who)
	}
	if err != nil {
		return users.User{}, err
	}
	defer t.close()
	return users.Find(func(name string) (io.ReadCloser, error) { return t.open(name) }, has, who)
}

// FindUserInside returns a user of a node whose root is at a folder, as at /proc/PID/root while it runs.
func FindUserInside(root string, has users.Has, who string) (users.User, error) {
	return users.Find(users.In(root), has, who)
}
